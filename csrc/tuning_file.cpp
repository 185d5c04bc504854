#include "tuning_file.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "dispatcher.hpp"
#include "report.hpp"
#include "scalars.hpp"

namespace nb = nanobind;

namespace gristmill {

namespace {

constexpr const char* fix_file = "pass a file that `python -m gristmill tune --out FILE` wrote";

void warn(const Message& message) {
    if (PyErr_WarnEx(PyExc_RuntimeWarning, message.text().c_str(), 1) != 0) throw nb::python_error();
}

template <class Value>
Value field(const nb::dict& from, const char* name) {
    if (!from.contains(name))
        throw Failure(ErrorKind::value, {.what = concat("tuned table: there is no `", name, "`"), .fix = fix_file});
    const nb::object value = from[name];
    Value result{};
    if (nb::try_cast(value, result)) return result;
    throw Failure(ErrorKind::value, {.what = concat("tuned table: `", name, "` is something else"),
                                     .found = nb::repr(value).c_str(),
                                     .fix = fix_file});
}

nb::dict read_file(nb::handle path) {
    const nb::object file = nb::module_::import_("builtins").attr("open")(path, "rb");
    try {
        const auto content = nb::cast<nb::dict>(nb::module_::import_("tomllib").attr("load")(file));
        file.attr("close")();
        return content;
    } catch (nb::python_error& error) {
        file.attr("close")();
        throw Failure(ErrorKind::value, {.what = concat("`", nb::str(path).c_str(), "` is no tuned table"),
                                         .found = nb::str(error.value()).c_str(),
                                         .fix = fix_file});
    }
}

nb::dict dict_of(nb::handle item) {
    if (nb::isinstance<nb::dict>(item)) return nb::borrow<nb::dict>(item);
    throw Failure(ErrorKind::value, {.what = "tuned table: there is something else than tables and rows",
                                     .found = nb::repr(item).c_str(),
                                     .fix = fix_file});
}

// One `[[table]]`: the rows of a kernel on a device.
class Table {
public:
    Table(const Dispatcher& dispatcher, const nb::dict& content)
        : dispatcher_(dispatcher), kernel_(dispatcher.kernel()), content_(content) {}

    std::size_t load() const {
        if (!has_key()) return 0;
        const std::uint16_t device =
            number_of({field<std::string>(content_, "device"), field<std::string>(content_, "architecture"),
                       field<std::int64_t>(content_, "units")});
        std::size_t taken = 0;
        for (nb::handle row : field<nb::list>(content_, "rows")) {
            auto loaded = read(device, dict_of(row));
            if (!loaded) continue;
            dispatcher_.index().tuned().add(std::move(*loaded));
            ++taken;
        }
        if (taken > 0) dispatcher_.callable().known.forget();
        return taken;
    }

private:
    bool has_key() const {
        const auto names = field<std::vector<std::string>>(content_, "key");
        if (std::ranges::equal(names, kernel_.key_names, [](const auto& a, const char* b) { return a == b; }))
            return true;
        const auto quote = [](const auto& name) { return concat("\"", std::string(name), "\""); };
        warn({.what = concat(kernel_.name, ": a tuned table has another key than the kernel, and is passed over"),
              .found = concat("[", listed(names, quote), "]"),
              .built = concat("[", listed(kernel_.key_names, quote), "]"),
              .fix = "measure again: python -m gristmill tune"});
        return false;
    }

    std::optional<LoadedRow> read(std::uint16_t device, const nb::dict& row) const {
        const auto id = field<std::string>(row, "take");
        const auto found =
            std::ranges::find(kernel_.specialisations, id, [](const auto& s) { return std::string(s.id); });
        if (found == kernel_.specialisations.end()) {
            warn({.what = concat(kernel_.name, ": a tuned row takes `", id, "`, which is not built; it is passed over"),
                  .fix = "measure again: python -m gristmill tune; or remove the row"});
            return std::nullopt;
        }
        LoadedRow loaded{device, static_cast<std::uint16_t>(found - kernel_.specialisations.begin()),
                         variant(field<std::string>(row, "variant")), named(row, *found),
                         field<std::vector<std::int64_t>>(row, "key")};
        if (loaded.key.size() == kernel_.key.size()) return loaded;
        throw Failure(ErrorKind::value, {.what = concat(kernel_.name, ": a tuned row has ", loaded.key.size(),
                                                        " numbers in its key, and not ", kernel_.key.size()),
                                         .fix = fix_file});
    }

    static Variant variant(const std::string& name) {
        const auto found = std::ranges::find(variant_names, name, [](const char* known) { return std::string(known); });
        if (found != variant_names.end()) return static_cast<Variant>(found - variant_names.begin());
        throw Failure(
            ErrorKind::value,
            {.what = concat("tuned table: `", name, "` is no variant"), .supported = "a32, g32, g64", .fix = fix_file});
    }

    // The constants that calls name; a specialisation that has others is not what the row means.
    std::uint16_t named(const nb::dict& row, const Specialisation& specialisation) const {
        std::uint16_t mask = 0;
        if (!row.contains("constants")) return mask;
        for (const auto& [name, value] : field<nb::dict>(row, "constants")) {
            const char* text = nb::borrow<nb::str>(name).c_str();
            const int constant = dispatcher_.index().constant(text);
            const auto i = static_cast<std::size_t>(constant);
            if (constant < 0 || !is_equal(read_constant(kernel_, text, value.ptr()), specialisation.constants[i]))
                throw Failure(ErrorKind::value, {.what = concat("tuned table: `", specialisation.id, "` has no ", text,
                                                                "=", nb::repr(value).c_str()),
                                                 .fix = fix_file});
            mask = static_cast<std::uint16_t>(mask | 1u << i);
        }
        return mask;
    }

    const Dispatcher& dispatcher_;
    const Kernel& kernel_;
    const nb::dict& content_;
};

std::vector<std::string> environment_paths() {
    const char* text = std::getenv("GRISTMILL_TUNING");
    std::vector<std::string> paths;
    for (std::string rest = text ? text : ""; !rest.empty();) {
        const std::size_t end = std::min(rest.find(':'), rest.size());
        if (end > 0) paths.push_back(rest.substr(0, end));
        rest.erase(0, end + 1);
    }
    return paths;
}

void load_or_warn(const std::string& path) {
    const auto give_up = [&](std::string why) {
        warn({.what = concat("GRISTMILL_TUNING: `", path, "` is not used"),
              .found = std::move(why),
              .fix = "name a file that `python -m gristmill tune --out FILE` wrote, or unset it"});
    };
    try {
        load_tuning(nb::str(path.c_str()), nullptr);
    } catch (const Failure& failure) {
        give_up(failure.what());
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_OSError)) throw;
        give_up(nb::str(error.value()).c_str());
    }
}

}  // namespace

std::size_t load_tuning(nb::handle source, const Kernel* only) {
    const nb::dict content = nb::isinstance<nb::dict>(source) ? nb::borrow<nb::dict>(source) : read_file(source);
    std::size_t taken = 0;
    for (nb::handle item : field<nb::list>(content, "table")) {
        const nb::dict table = dict_of(item);
        const auto name = field<std::string>(table, "kernel");
        for (std::size_t i = 0; i < tables.kernels.size(); ++i)
            if (name == tables.kernels[i].name && (!only || only == &tables.kernels[i]))
                taken += Table(dispatcher(i), table).load();
    }
    return taken;
}

void load_tuning_from_environment() {
    for (const std::string& path : environment_paths()) load_or_warn(path);
}

}  // namespace gristmill
