#pragma once

// Numbers of JSON text as integers, doubles and nanoseconds, where that is exact.

#include <cstdint>

#include "json_text.h"

namespace {

constexpr std::int64_t LIMIT_US = (std::int64_t{1} << 62) / 1000;

struct Decimal {
    bool is_negative = false;
    std::int64_t digits = 0;  // without the point
    int whole = 0, places = 0;  // how many before and after the point
    bool is_plain = false;  // no exponent, at most 19 digits
};

inline Decimal decimal(Span text) {
    Decimal result;
    const char* at = text.begin;
    std::uint64_t digits = 0;
    if (at != text.end && *at == '-') result.is_negative = true, ++at;
    if (text.end - at > 20) return result;
    for (; at != text.end && is_digit(*at); ++at, ++result.whole)
        digits = digits * 10 + unsigned(*at - '0');
    if (result.whole && at != text.end && *at == '.')
        for (++at; at != text.end && is_digit(*at); ++at, ++result.places)
            digits = digits * 10 + unsigned(*at - '0');
    result.is_plain = result.whole && at == text.end && result.whole + result.places <= 19 &&
                      digits <= INT64_MAX;
    result.digits = std::int64_t(digits);
    return result;
}

// Exact nanoseconds of plain microseconds; false for any other text.
inline bool nanoseconds(Span text, std::int64_t& result) {
    Decimal us = decimal(text);
    if (!us.is_plain || us.whole > 16 || us.places > 3) return false;
    constexpr std::int64_t scale[] = {1000, 100, 10, 1};
    if (us.digits / (1000 / scale[us.places]) >= LIMIT_US) return false;
    result = us.digits * scale[us.places];
    if (us.is_negative) result = -result;
    return true;
}

// The nearest double of a number whose digits and power of ten are doubles; false for any other.
inline bool real(Span text, double& result) {
    Decimal number = decimal(text);
    if (!number.is_plain || number.digits >= std::int64_t{1} << 53) return false;
    if (number.is_negative && !number.digits) return false;
    constexpr double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,
                                1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19};
    result = double(number.digits) / power[number.places];
    if (number.is_negative) result = -result;
    return true;
}

inline bool integer(Span text, std::int64_t& result) {
    Decimal number = decimal(text);
    if (!number.is_plain || number.places) return false;
    result = number.is_negative ? -number.digits : number.digits;
    return true;
}

}  // namespace
