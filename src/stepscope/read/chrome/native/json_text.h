#pragma once

// JSON text as tokens: strings, numbers and values are checked and left where they are.
//
// The text must be followed by a NUL byte, at once or after more text, as that of Python's `bytes`
// is. No JSON token contains one, so that every scan ends there and needs no other bound.
//
// Source: RFC 8259.

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

constexpr int MOST_LEVELS = 900;  // as many as Python reads

struct Odd {};  // thrown at everything that Python shall read instead

template <typename Word>
std::uint64_t loaded(const char* at) {
    Word word;
    std::memcpy(&word, at, sizeof word);
    return word;
}

struct Span {
    const char* begin = nullptr;
    const char* end = nullptr;

    std::size_t size() const { return std::size_t(end - begin); }
    explicit operator bool() const { return begin != nullptr; }

    // Short texts are compared by their first and their last bytes, which may overlap.
    bool operator==(const Span& other) const {
        std::size_t n = size();
        if (n != other.size()) return false;
        if (n > 16) return !std::memcmp(begin, other.begin, n);
        if (n >= 8) return has_ends_of<std::uint64_t>(other);
        if (n >= 4) return has_ends_of<std::uint32_t>(other);
        for (std::size_t at = 0; at < n; ++at)
            if (begin[at] != other.begin[at]) return false;
        return true;
    }

    template <std::size_t N>
    bool is(const char (&text)[N]) const {
        return size() == N - 1 && !std::memcmp(begin, text, N - 1);
    }

    bool contains(char wanted) const { return std::memchr(begin, wanted, size()); }

private:
    template <typename Word>
    bool has_ends_of(const Span& other) const {
        return loaded<Word>(begin) == loaded<Word>(other.begin) &&
               loaded<Word>(end - sizeof(Word)) == loaded<Word>(other.end - sizeof(Word));
    }
};

inline bool is_digit(char character) { return character >= '0' && character <= '9'; }

inline bool is_plain(char character) {
    return static_cast<unsigned char>(character) >= 0x20 && character != '"' && character != '\\';
}

#if defined(__SSE2__)
constexpr std::ptrdiff_t STRIDE = 16;

// How many of the next 16 bytes come before the first quote, backslash or control character.
inline int plain_bytes(const char* at) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1F)), bytes);
    const __m128i quote = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
    const __m128i backslash = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
    const int found = _mm_movemask_epi8(_mm_or_si128(control, _mm_or_si128(quote, backslash)));
    return found ? __builtin_ctz(unsigned(found)) : int(STRIDE);
}
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
constexpr std::ptrdiff_t STRIDE = 8;
constexpr std::uint64_t EACH = 0x0101010101010101, HIGH = 0x8080808080808080;

inline std::uint64_t below(std::uint64_t word, std::uint64_t limit) {
    return (word - EACH * limit) & ~word & HIGH;
}

// The same of the next 8 bytes.
inline int plain_bytes(const char* at) {
    const std::uint64_t word = loaded<std::uint64_t>(at);
    // A byte that is marked wrongly is above one that is marked rightly, and the lowest counts.
    const std::uint64_t found = below(word ^ (EACH * '"'), 1) | below(word ^ (EACH * '\\'), 1) |
                                below(word, 0x20);
    return found ? __builtin_ctzll(found) / 8 : int(STRIDE);
}
#else
constexpr std::ptrdiff_t STRIDE = 1;

inline int plain_bytes(const char* at) { return is_plain(*at); }
#endif

// The first quote, backslash or control character.
inline const char* plain_end(const char* at, const char* end) {
    while (end - at >= STRIDE) {
        const int count = plain_bytes(at);
        at += count;
        if (count < STRIDE) return at;
    }
    while (is_plain(*at)) ++at;
    return at;
}

class Tokens {
public:
    Tokens(const char* text, std::int64_t size) : at_(text), end_(text + size) {}

    const char* at() const { return at_; }
    bool is_done() const { return at_ >= end_; }  // or in blanks that follow
    bool is_beyond() const { return at_ > end_; }  // in what follows
    char next() const { return *at_; }

    // Whether the string read last has an escape.
    bool has_escape() const { return has_escape_; }

    void skip_blanks() {
        if (static_cast<unsigned char>(*at_) > ' ') return;
        const char* at = at_;  // in a register
        while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') ++at;
        at_ = at;
    }

    bool take(char wanted) {
        if (*at_ != wanted) return false;
        ++at_;
        return true;
    }

    void require(char wanted) {
        if (!take(wanted)) throw Odd();
    }

    // A string with its quotes.
    Span string() {
        const char* begin = at_;
        if (*begin != '"') throw Odd();
        has_escape_ = false;
        const char* at = plain_end(begin + 1, end_);
        while (*at == '\\') {
            at_ = at;
            skip_escape();
            at = plain_end(at_, end_);
        }
        if (*at != '"') throw Odd();
        at_ = at + 1;
        return {begin, at + 1};
    }

    // A key without its quotes, and the colon and blanks after it.
    Span key() {
        Span quoted = string();
        skip_blanks();
        require(':');
        skip_blanks();
        return {quoted.begin + 1, quoted.end - 1};
    }

    void skip_number() {
        const char* at = at_ + (*at_ == '-');
        if (*at == 'I' && at != at_) {
            at_ = at;
            return skip_word("Infinity");
        }
        at = *at == '0' ? at + 1 : digits_end(at);
        if (*at == '.') at = digits_end(at + 1);
        if (*at == 'e' || *at == 'E') {
            ++at;
            at = digits_end(at + (*at == '-' || *at == '+'));
        }
        at_ = at;
    }

    Span value(int level = 0) {
        const char* begin = at_;
        switch (*at_) {
            case '"': string(); break;
            case '{': object(level, [&](Span) { value(level + 1); }); break;
            case '[': skip_array(level); break;
            case 't': skip_word("true"); break;
            case 'f': skip_word("false"); break;
            case 'n': skip_word("null"); break;
            case 'N': skip_word("NaN"); break;  // as recorders write them
            case 'I': skip_word("Infinity"); break;
            default: skip_number();
        }
        return {begin, at_};
    }

    // An object; `member` is called at each value with its key, and takes the value.
    template <typename Member>
    void object(int level, Member member) {
        if (level > MOST_LEVELS) throw Odd();
        require('{');
        skip_blanks();
        if (take('}')) return;
        do {
            skip_blanks();
            member(key());
            skip_blanks();
        } while (take(','));
        require('}');
    }

private:
    void skip_array(int level) {
        if (level > MOST_LEVELS) throw Odd();
        require('[');
        skip_blanks();
        if (take(']')) return;
        do {
            skip_blanks();
            value(level + 1);
            skip_blanks();
        } while (take(','));
        require(']');
    }

    // The end of at least one digit.
    static const char* digits_end(const char* at) {
        if (!is_digit(*at)) throw Odd();
        while (is_digit(*at)) ++at;
        return at;
    }

    void skip_word(const char* word) {
        while (*word) require(*word++);
    }

    void skip_escape() {
        has_escape_ = true;
        require('\\');
        if (take('u')) {
            unsigned unit = hexadecimal();
            if (unit < 0xD800 || unit > 0xDFFF) return;
            if (unit > 0xDBFF || !take('\\') || !take('u')) throw Odd();
            unit = hexadecimal();
            if (unit < 0xDC00 || unit > 0xDFFF) throw Odd();
            return;
        }
        if (!*at_ || !std::strchr("\"\\/bfnrt", *at_)) throw Odd();
        ++at_;
    }

    unsigned hexadecimal() {
        unsigned unit = 0;
        for (int digit = 0; digit < 4; ++digit, ++at_) {
            unsigned lower = static_cast<unsigned char>(*at_) | 0x20u;
            if (is_digit(*at_)) unit = unit * 16 + unsigned(*at_ - '0');
            else if (lower >= 'a' && lower <= 'f') unit = unit * 16 + (lower - 'a' + 10);
            else throw Odd();
        }
        return unit;
    }

    const char* at_;
    const char* end_;
    bool has_escape_ = false;
};

}  // namespace
