#include "error.hpp"

namespace gristmill {

namespace {

void append_line(std::string& text, std::string_view label, std::string_view value) {
    if (value.empty()) return;
    text.append("\n  ").append(label).append(": ").append(value);
}

}  // namespace

std::string Message::text() const {
    std::string result = what;
    append_line(result, "asked", asked);
    append_line(result, "found", found);
    append_line(result, "built", built);
    append_line(result, "supported", supported);
    append_line(result, "fix", fix);
    return result;
}

}  // namespace gristmill
