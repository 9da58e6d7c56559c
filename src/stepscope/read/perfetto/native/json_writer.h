#pragma once

// JSON text that grows, written to a file whenever much has come together.

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include <unistd.h>

namespace {

struct TooLarge {};  // thrown where the text takes more room than it may
struct Unwritten {};  // thrown where the file cannot be written; `errno` says why

// The length of the UTF-8 character at the start of a text, 0 where there is none.
inline std::size_t character(std::string_view text) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned first = byte(0);
    const std::size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2
                             : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (!size || size > text.size()) return 0;
    for (std::size_t at = 1; at < size; ++at)
        if ((byte(at) & 0xC0) != 0x80) return 0;
    if (size < 3) return size;
    const unsigned second = byte(1);
    const bool is_long = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool is_high = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
    return is_long || is_high ? 0 : size;
}

inline bool is_plain(char character) {
    const auto byte = static_cast<unsigned char>(character);
    return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

// A text as a JSON string; bytes that are not UTF-8 become U+FFFD.
inline void append_quoted(std::string& json, std::string_view text) {
    json += '"';
    while (!text.empty()) {
        std::size_t size = 0;
        while (size < text.size() && is_plain(text[size])) ++size;
        json += text.substr(0, size);
        text.remove_prefix(size);
        if (text.empty()) break;
        const auto first = static_cast<unsigned char>(text[0]);
        size = character(text);
        if (!size) {
            json += "\xEF\xBF\xBD";
        } else if (first < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", first);
            json += escaped;
        } else {
            if (size == 1) json += '\\';
            json += text.substr(0, size);
        }
        text.remove_prefix(size ? size : 1);
    }
    json += '"';
}

class JsonWriter {
public:
    JsonWriter(int file, std::int64_t most) : file_(file), most_(most) {}

    JsonWriter& operator<<(std::string_view text) {
        text_ += text;
        if (text_.size() > ENOUGH) flush();
        return *this;
    }

    template <typename Integer>
    JsonWriter& number(Integer value) {
        char digits[24];
        const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
        return *this << std::string_view(digits, std::size_t(end - digits));
    }

    JsonWriter& real(double value) {
        char digits[32];
        if (!std::isfinite(value)) return *this << "null";
        const std::string_view text(digits, std::size_t(std::snprintf(digits, sizeof digits, "%.17g", value)));
        const bool is_whole = text.find_first_of(".e") == text.npos;
        return *this << text << (is_whole ? ".0" : "");
    }

    JsonWriter& quoted(std::string_view text) {
        append_quoted(text_, text);
        return *this << "";
    }

    // A text that is a JSON string already, or not yet.
    JsonWriter& text(std::string_view text, bool is_quoted) { return is_quoted ? *this << text : quoted(text); }

    // Nanoseconds as microseconds.
    JsonWriter& microseconds(std::int64_t ns) {
        const std::uint64_t size = ns < 0 ? -std::uint64_t(ns) : std::uint64_t(ns);
        const auto rest = unsigned(size % 1000);
        const char part[] = {'.', char('0' + rest / 100), char('0' + rest / 10 % 10), char('0' + rest % 10)};
        return (ns < 0 ? *this << "-" : *this).number(size / 1000) << std::string_view(part, sizeof part);
    }

    void flush() {
        most_ -= std::int64_t(text_.size());
        if (most_ < 0) throw TooLarge();
        for (std::size_t at = 0; at < text_.size();) {
            const auto written = ::write(file_, text_.data() + at, text_.size() - at);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) throw Unwritten();
            at += std::size_t(written);
        }
        text_.clear();
    }

private:
    static constexpr std::size_t ENOUGH = 1 << 20;  // bytes

    const int file_;
    std::int64_t most_;
    std::string text_;
};

}  // namespace
