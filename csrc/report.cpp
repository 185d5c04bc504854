#include "report.hpp"

#include <set>
#include <string>

#include "cpu.hpp"
#include "device.hpp"
#include "dispatcher.hpp"
#include "host.hpp"
#include "image.hpp"
#include "occupancy.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

nb::object host_level_object() {
    const auto level = best_host_level();
    return level ? nb::object(nb::str(level_name(tables.host_levels[*level]).data())) : nb::none();
}

nb::list level_list() {
    nb::list levels;
    for (const auto level : tables.host_levels) levels.append(nb::str(level_name(level).data()));
    return levels;
}

void add(nb::list& lines, const char* check, const char* status, const std::string& text) {
    lines.append(nb::make_tuple(check, status, text));
}

void add_host(nb::list& lines) {
    const auto level = best_host_level();
    const std::string cpu(cpu_level_text());
    if (level)
        add(lines, "cpu", "ok", concat(cpu, "; images for ", level_name(tables.host_levels[*level]), " are used"));
    else if (tables.host_levels.empty())
        add(lines, "cpu", "warning", concat(cpu, "; the package holds no CPU code"));
    else
        add(lines, "cpu", "error", concat(cpu, "; the lowest built level is ", level_name(tables.host_levels[0])));
    add(lines, "threads", "ok", concat(host_thread_count(), " for a large grid (GRISTMILL_NUM_THREADS)"));
}

std::string image_text(const EntryPlace& place, const cuda::DeviceFacts& facts, int driver_version) {
    return describe_image(tables.images[image_for(place, facts, driver_version)]);
}

std::string images_text(const cuda::DeviceFacts& facts, int driver_version) {
    std::set<std::string> used;
    for (const auto& kernel : tables.kernels) {
        const int source = source_for(kernel, facts, driver_version);
        for (const auto& row : kernel.specialisations)
            if (is_built(row, source)) used.insert(image_text({kernel, row, Variant::aligned32}, facts, driver_version));
    }
    return listed(used, [](const std::string& text) { return text; });
}

void add_device(nb::list& lines, const cuda::Api& api, int ordinal) {
    const std::string name = concat("cuda:", ordinal);
    try {
        const cuda::DeviceFacts facts = cuda::device_facts(api, ordinal);
        const std::string found =
            concat(facts.name, ", sm_", facts.capability.sm(), ", ", facts.sm_count, " multiprocessors");
        add(lines, name.c_str(), "ok", found);
        const std::string images = images_text(facts, api.resolver.driver_version());
        const bool is_compiled = images.find("PTX") != std::string::npos;
        add(lines, name.c_str(), is_compiled ? "warning" : "ok",
            concat(images, is_compiled ? ": the driver compiles PTX at the first call" : "",
                   is_ptx_forced() ? " (GRISTMILL_IMAGES=ptx)" : ""));
    } catch (const Failure& failure) {
        add(lines, name.c_str(), "error", failure.what());
    }
}

void add_cuda(nb::list& lines) {
    try {
        const cuda::Api& api = cuda::open_driver();
        add(lines, "driver", "ok",
            concat(api.resolver.path(), ", CUDA ", cuda::version_text(api.resolver.driver_version())));
        const int count = cuda::device_count(cuda::driver());
        for (int ordinal = 0; ordinal < count; ++ordinal) add_device(lines, api, ordinal);
    } catch (const Failure& failure) {
        add(lines, "driver", "warning", failure.what());
    }
}

}  // namespace

nb::dict image_dict(const Image& image) {
    nb::dict result;
    result["kind"] = image.kind == ImageKind::cubin ? "cubin" : "ptx";
    result["target"] = target_name(image);
    result["ptx_version"] =
        image.kind == ImageKind::ptx
            ? nb::object(nb::str(concat(image.ptx_version / 10, ".", image.ptx_version % 10).c_str()))
            : nb::none();
    result["bytes"] = image.raw_size;
    result["packed_bytes"] = image.size;
    return result;
}

void add_usage(const EntryPlace& place, std::uint16_t image, int sm, nb::dict& told) {
    const Geometry& geometry = place.geometry(image);
    told["threads"] = geometry.threads;
    told["shared_bytes"] = geometry.shared_bytes;
    if (geometry.ctas > 1) told["cluster"] = geometry.ctas;
    if (!geometry.maps.empty()) told["tensor_maps"] = geometry.maps.size();
    const Usage usage = place.usage(image);
    if (usage.registers == 0) return;
    told["registers"] = usage.registers;
    told["stack_bytes"] = usage.stack_bytes;
    told["spill_bytes"] = usage.spill_bytes;
    const auto occupancy = occupancy_of(usage, geometry, sm);
    if (!occupancy) return;
    told["blocks_per_multiprocessor"] = occupancy->blocks;
    told["occupancy"] = occupancy->share;
}

nb::dict kernel_info(const Kernel& kernel) {
    nb::dict result;
    std::set<std::uint16_t> images(kernel.cubins.begin(), kernel.cubins.end());
    nb::list ids, image_list;
    for (const auto& row : kernel.specialisations) {
        ids.append(nb::str(row.id));
        for (const auto& entry : row.entries) images.insert(entry.ptx.begin(), entry.ptx.end());
    }
    for (const auto image : images) image_list.append(image_dict(tables.images[image]));
    result["kernel"] = kernel.name;
    result["file"] = kernel.file;
    result["specialisations"] = ids;
    result["images"] = image_list;
    result["host_levels"] = level_list();
    nb::list key;
    for (const char* name : kernel.key_names) key.append(nb::str(name));
    result["key"] = key;
    result["tuned_rows"] = kernel.tuned.size();
    return result;
}

nb::dict device_info(const Kernel& kernel, int device) {
    const cuda::Api& api = cuda::driver();
    const cuda::DeviceFacts facts = cuda::device_facts(api, device);
    const int version = api.resolver.driver_version(), source = source_for(kernel, facts, version);
    nb::dict result, images;
    for (const auto& row : kernel.specialisations)
        images[row.id] =
            is_built(row, source) ? image_text({kernel, row, Variant::aligned32}, facts, version) : "not built";
    result["kernel"] = kernel.name;
    result["device"] = concat(facts.name, ", sm_", facts.capability.sm());
    result["images"] = images;
    return result;
}

nb::dict package_info() {
    nb::dict result;
    nb::list kernels, images;
    for (const auto& kernel : tables.kernels) kernels.append(nb::str(kernel.name));
    for (const auto& image : tables.images) images.append(image_dict(image));
    result["package"] = tables.package;
    result["version"] = tables.version;
    result["gristmill_version"] = tables.gristmill_version;
    result["kernels"] = kernels;
    result["images"] = images;
    result["host_levels"] = level_list();
    result["host_level"] = host_level_object();
    result["threads"] = host_thread_count();
    return result;
}

nb::list doctor() {
    nb::list lines;
    add(lines, "package", "ok",
        concat(tables.package, " ", tables.version, ", ", tables.kernels.size(), " kernels, built by gristmill ",
               tables.gristmill_version));
    add_host(lines);
    add_cuda(lines);
    return lines;
}

}  // namespace gristmill
