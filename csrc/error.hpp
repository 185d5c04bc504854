// Failures that reach the user: what was wrong, what was found, what there is, and one fix that can be pasted.
#pragma once

#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gristmill {

inline std::string to_text(std::string_view text) { return std::string(text); }
inline std::string to_text(char letter) { return std::string(1, letter); }
template <std::integral Number>
std::string to_text(Number number) {
    return std::to_string(number);
}

// The parts one after the other; numbers in decimal.
template <class... Parts>
std::string concat(const Parts&... parts) {
    std::string text;
    (text.append(to_text(parts)), ...);
    return text;
}

// The items of a range, through `text`, with commas between.
template <class Range, class Text>
std::string listed(const Range& range, Text text, std::string_view separator = ", ") {
    std::string result;
    for (const auto& item : range) {
        if (!result.empty()) result.append(separator);
        result.append(text(item));
    }
    return result;
}

enum class ErrorKind : std::uint8_t { type, value, runtime };

// Empty parts are left out of the text.
struct Message {
    std::string what;
    std::string asked = {};
    std::string found = {};
    std::string built = {};
    std::string supported = {};
    std::string fix = {};

    std::string text() const;
};

// Becomes TypeError, ValueError or RuntimeError in Python.
class Failure : public std::runtime_error {
public:
    Failure(ErrorKind kind, const Message& message) : std::runtime_error(message.text()), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

private:
    ErrorKind kind_;
};

}  // namespace gristmill
