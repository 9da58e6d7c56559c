#pragma once

// What a sequence of packets has said that later ones refer to: interned texts, clocks and defaults.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "json_writer.h"

namespace {

using Text = std::string_view;
using Number = std::int64_t;

enum Interned { CATEGORIES = 1, NAMES = 2, ARGUMENT_NAMES = 3, TEXTS = 29 };

constexpr Number BOOT = 6, FIRST_CUSTOM = 64;  // clocks

// A clock: its reading at a nanosecond of the boot clock, and its unit.
struct Clock {
    Number start_ns = 0, reading = 0, unit_ns = 1;
    bool is_incremental = false;  // its times are since the packet before

    // Sums wrap, as those of a damaged file may.
    Number ns(Number time) {
        const auto steps = std::uint64_t(time) - (is_incremental ? 0 : std::uint64_t(reading));
        const auto result = Number(std::uint64_t(start_ns) + steps * std::uint64_t(unit_ns));
        if (is_incremental) start_ns = result;
        return result;
    }
};

// What a sequence has said since it last cleared its state.
struct State {
    std::map<std::uint64_t, std::string> texts[TEXTS + 1];  // as JSON, by kind and number
    std::map<Number, Clock> clocks;
    std::map<Number, double> counters;  // sums of incremental ones, by track
    Number clock = 0, track = 0;  // of packets that name none

    Text text(Interned kind, std::uint64_t number) const {
        const auto entry = texts[kind].find(number);
        return entry == texts[kind].end() ? Text("\"\"") : Text(entry->second);
    }
};

inline std::string quoted(Text text) {
    std::string json;
    append_quoted(json, text);
    return json;
}

}  // namespace
