// What an instance says of itself: dtypes, constants, images, PTX, its gradient.
#include <algorithm>

#include "cpu.hpp"
#include "dispatcher.hpp"
#include "dtype.hpp"
#include "image.hpp"
#include "report.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

const Entry& entry_of(const Specialisation& row, std::string_view variant) {
    for (std::size_t i = 0; i < variant_names.size(); ++i)
        if (variant == variant_names[i]) return row.entries[i];
    throw Failure(ErrorKind::value, {.what = concat("`", variant, "` is no variant"),
                                     .supported = "a32 (aligned), g32, g64 (64-bit offsets)",
                                     .fix = "pass one of these"});
}

nb::dict host_dict(const Entry& entry, std::size_t level) {
    nb::dict result;
    result["kind"] = "host";
    result["target"] = nb::str(level_name(tables.host_levels[level]).data());
    result["entry_point"] = entry.symbol;
    return result;
}

}  // namespace

nb::dict Instance::dtypes() const {
    nb::dict result;
    for (std::size_t i = 0; i < kernel().dtype_vars.size(); ++i)
        result[kernel().dtype_vars[i]] = nb::str(dtype_name(row().dtypes[i]).data());
    return result;
}

nb::dict Instance::constants() const {
    nb::dict result;
    for (std::size_t i = 0; i < kernel().constants.size(); ++i)
        result[kernel().constants[i]] = constant_object(row().constants[i]);
    return result;
}

std::string Instance::ptx(const std::string& target, const std::string& variant) const {
    const Entry& entry = entry_of(row(), variant);
    if (!entry.symbol)
        throw Failure(ErrorKind::value, {.what = concat(row().id, ": has no variant `", variant, "`"),
                                         .supported = "a32: it is compiled for aligned calls only (`aligned=True`)",
                                         .fix = "pass `\"a32\"`"});
    for (const auto image : entry.ptx)
        if (target_name(tables.images[image]) == target) return image_bytes(image);
    throw Failure(ErrorKind::value,
                  {.what = concat(row().id, ": no PTX for ", target),
                   .built = listed(entry.ptx, [](std::uint16_t image) { return target_name(tables.images[image]); }),
                   .fix = concat("add `", target, "` to TARGETS in gristmill_add_kernels(...), then rebuild")});
}

nb::list Instance::images() const {
    nb::list result;
    const auto add = [&](std::uint16_t image, const char* entry_point) {
        nb::dict row = image_dict(tables.images[image]);
        row["entry_point"] = entry_point;
        result.append(row);
    };
    for (const auto image : kernel().cubins) add(image, row().entries[0].symbol);
    for (const auto image : row().entries[0].ptx) add(image, row().entries[0].symbol);
    for (std::size_t level = 0; level < row().entries[0].host.size(); ++level)
        result.append(host_dict(row().entries[0], level));
    return result;
}

nb::dict Instance::info() const {
    nb::list code;
    for (const auto variant : {Variant::aligned32, Variant::general32, Variant::general64}) {
        const EntryPlace place{kernel(), row(), variant};
        if (!place.entry().symbol) continue;
        const auto add = [&](std::uint16_t image) {
            if (place.geometry(image).threads == 0) return;
            nb::dict told;
            told["image"] = describe_image(tables.images[image]);
            told["variant"] = variant_names[static_cast<std::size_t>(variant)];
            told["entry_point"] = place.entry().symbol;
            add_usage(place, image, tables.images[image].sm, told);
            code.append(told);
        };
        std::ranges::for_each(kernel().cubins, add);
        std::ranges::for_each(place.entry().ptx, add);
    }
    nb::dict result;
    result["kernel"] = kernel().name;
    result["specialisation"] = row().id;
    result["code"] = code;
    return result;
}

nb::object Instance::backward() const {
    if (kernel().backward < 0 || row().backward < 0) return nb::none();
    const Dispatcher& gradient = dispatcher(static_cast<std::size_t>(kernel().backward));
    return nb::cast(
        Instance(gradient.callable(), gradient.kernel().specialisations[static_cast<std::size_t>(row().backward)]));
}

std::string Instance::text() const { return concat("<KernelInstance ", row().id, ">"); }

}  // namespace gristmill
