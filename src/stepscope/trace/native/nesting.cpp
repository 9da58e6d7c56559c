// The nesting of events; `trace/nesting.py` calls it, and its functions in Python are the
// specification.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exported.h"

using Number = std::int64_t;
using Id = std::int32_t;

namespace {

struct Events {
    const Number *start, *duration;
    Number tolerance;

    Number end(Id event) const { return start[event] + duration[event]; }
    bool is_around(Id outer, Id inner) const {
        return end(outer) + tolerance >= end(inner) &&
               (end(outer) > start[inner] || start[outer] == start[inner]);
    }
};

}  // namespace

// Events by start, the longer first. track: 0 to `tracks - 1`. parent: filled in.
// Returns 1, or 0 where there is too little memory.
EXPORTED int stepscope_parents(Number count, Number tracks, const Id* track, const Number* start,
                               const Number* duration, Number tolerance, Id* parent) {
    try {
        std::vector<Id> last(std::size_t(tracks), -1);
        const Events events{start, duration, tolerance};
        for (Id event = 0; event < count; ++event) {
            Id outer = last[std::size_t(track[event])];
            while (outer >= 0 && !events.is_around(outer, event)) outer = parent[outer];
            parent[event] = outer;
            last[std::size_t(track[event])] = event;
        }
        return 1;
    } catch (...) {
        return 0;
    }
}

// self: of each event, the part of its duration during which no direct child runs.
EXPORTED int stepscope_self_times(Number count, const Id* parent, const Number* start,
                                  const Number* duration, Number* self) {
    const Events events{start, duration, 0};
    for (Number event = 0; event < count; ++event) self[event] = std::max(duration[event], Number{0});
    for (Id event = 0; event < count; ++event) {
        const Id outer = parent[event];
        if (outer < 0) continue;
        const Number end = std::min(events.end(event), events.end(outer));
        const Number inside = std::max(end - start[event], Number{0});
        self[outer] = std::max(self[outer] - inside, Number{0});
    }
    return 1;
}

// depth: of each event, how many are around it.
// Returns 1, or 0 where an event comes before one around it.
EXPORTED int stepscope_depths(Number count, const Id* parent, Id* depth) {
    for (Number event = 0; event < count; ++event) {
        if (parent[event] >= event) return 0;
        depth[event] = parent[event] < 0 ? 0 : depth[parent[event]] + 1;
    }
    return 1;
}

// value: of each event, -1 where it has none; that of the innermost event around it afterwards.
// Returns 1, or 0 where an event comes before one around it, with nothing changed.
EXPORTED int stepscope_inherit(Number count, const Id* parent, Id* value) {
    for (Number event = 0; event < count; ++event)
        if (parent[event] >= event) return 0;
    for (Number event = 0; event < count; ++event)
        if (value[event] < 0) value[event] = parent[event] < 0 ? value[event] : value[parent[event]];
    return 1;
}
