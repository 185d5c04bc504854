// Prints what generated tables hold, for tests/test_embed.py.
#include <cstdio>
#include <utility>

#include "tables.hpp"

using namespace gristmill;

static int called = 0;

static void print_code(Code code) {
    const char* begin = "(";
    for (auto word : code) std::printf("%s%lld", std::exchange(begin, " "), static_cast<long long>(word));
    std::printf(") ");
}

static void print_map(const TensorMap& map) {
    std::printf("map of %d dtype %d extents ", map.parameter, static_cast<int>(map.dtype));
    for (auto code : map.extents) print_code(code);
    std::printf("strides ");
    for (auto code : map.strides) print_code(code);
    std::printf("box");
    for (auto size : map.box) std::printf(" %d", size);
    std::printf(" swizzle %d\n", map.swizzle);
}

static void print_entry(const Entry& entry) {
    if (!entry.symbol) return;
    std::printf("entry %s geometry", entry.symbol);
    for (const auto& g : entry.geometry)
        std::printf(" %u,%u,%u,%d,%d,%zu", g.threads, g.shared_bytes, g.ctas, g.waits, g.draws, g.maps.size());
    std::printf(" host %zu ptx", entry.host.size());
    for (auto image : entry.ptx) std::printf(" %d", image);
    std::printf("\n");
    for (const auto& g : entry.geometry)
        for (const auto& map : g.maps) print_map(map);
    for (auto function : entry.host) {
        function(nullptr, nullptr, 0, 0);
        ++called;
    }
}

static void print_specialisation(const Specialisation& s) {
    std::printf("specialisation %s dtypes", s.id);
    for (auto dtype : s.dtypes) std::printf(" %d", static_cast<int>(dtype));
    std::printf(" values");
    for (const auto& value : s.constants) std::printf(" %lld", static_cast<long long>(value.integer));
    std::printf(" warps %d divisibility", s.num_warps);
    for (auto divisors : s.divisibility) {
        std::printf(" of");
        for (auto value : divisors) std::printf(" %d", value);
    }
    std::printf(" backward %d\n", s.backward);
    for (const auto& entry : s.entries) print_entry(entry);
}

static void print_kernel(const Kernel& k) {
    std::printf("kernel %s in %s\ndoc %s\n%s\nvariables", k.name, k.file, k.doc, k.source);
    for (auto name : k.dtype_vars) std::printf(" %s", name);
    std::printf("; constants");
    for (auto name : k.constants) std::printf(" %s", name);
    std::printf("; backward kernel %d\n", k.backward);
    for (const auto& p : k.parameters)
        std::printf("parameter %s kind %d variable %d tensor %d rw %d%d default %d %g\n", p.name, static_cast<int>(p.kind), p.dtype_var,
                    p.tensor, p.is_read, p.is_written, p.has_default, p.default_value);
    for (const auto& code : k.grid) {
        std::printf("grid");
        for (auto word : code) std::printf(" %lld", static_cast<long long>(word));
        std::printf("\n");
    }
    for (const auto& s : k.specialisations) print_specialisation(s);
    for (std::size_t i = 0; i < k.usage.size(); ++i) {
        const auto& s = k.specialisations[i / 3 % k.specialisations.size()];
        const Usage& u = k.usage[i];
        const auto cubin = i / 3 / k.specialisations.size();
        std::printf("usage %s %zu %s %d %d %d\n", s.id, cubin, s.entries[i % 3].symbol, u.registers, u.stack_bytes,
                    u.spill_bytes);
    }
}

static void print_image(const Image& image) {
    unsigned sum = 0;
    for (std::uint32_t i = 0; i < image.size; ++i) sum += tables.blob[image.offset + i];
    std::printf("image sm %d version %d at %u size %u from %u of %u sum %u\n", image.sm, image.ptx_version, image.offset, image.size, image.start, image.raw_size, sum);
}

int main() {
    std::printf("package %s %s by %s; levels", tables.package, tables.version, tables.gristmill_version);
    for (auto level : tables.host_levels) std::printf(" %d", static_cast<int>(level));
    std::printf("\n");
    for (const auto& kernel : tables.kernels) print_kernel(kernel);
    for (const auto& image : tables.images) print_image(image);
    std::printf("called %d host functions\n", called);
}
