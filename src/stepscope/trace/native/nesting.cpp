// The nesting of events; `trace/nesting.py` calls it, and `tests/oracles/nesting.py` is the
// specification.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
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

// Finds the events of each track that start at or before a time.
class Tracks {
public:
    Tracks(Number count, Number tracks, const Id* track, const Number* start)
        : start_(start), ends_(std::size_t(tracks) + 1), events_(std::size_t(count)) {
        for (Number event = 0; event < count; ++event) ++ends_[std::size_t(track[event]) + 1];
        for (std::size_t at = 1; at < ends_.size(); ++at) ends_[at] += ends_[at - 1];
        std::vector<Id> next(ends_.begin(), ends_.end() - 1);
        for (Id event = 0; event < count; ++event)
            events_[std::size_t(next[std::size_t(track[event])]++)] = event;
        after_.assign(ends_.begin(), ends_.end() - 1);
    }

    // The last one, -1 if there is none. Queries of a track are mostly in order of time, so the
    // search begins where the last one ended.
    Id last_started(Id track, Number time) {
        if (track < 0 || std::size_t(track) >= after_.size()) return -1;
        const Id begin = ends_[std::size_t(track)], end = ends_[std::size_t(track) + 1];
        Id& after = after_[std::size_t(track)];
        Id low = after, high = after;  // all before `low` have started, none from `high` on
        for (Id step = 1; high < end && started(high, time); step *= 2) {
            low = high + 1;
            high = end - high > step ? high + step : end;
        }
        for (Id step = 1; low > begin && !started(low - 1, time); step *= 2) {
            high = low - 1;
            low = low - begin > step ? low - step : begin;
        }
        while (low < high) {
            const Id middle = low + (high - low) / 2;
            if (started(middle, time)) low = middle + 1;
            else high = middle;
        }
        after = low;
        return low > begin ? events_[std::size_t(low) - 1] : -1;
    }

private:
    bool started(Id place, Number time) const {
        return start_[events_[std::size_t(place)]] <= time;
    }

    const Number* start_;
    std::vector<Id> ends_, events_, after_;
};

// The places of some times in their order, in which they mostly are.
std::vector<Number> by_time(Number count, const Number* times) {
    std::vector<Number> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), Number{0});
    if (!std::is_sorted(times, times + count))
        std::stable_sort(order.begin(), order.end(),
                         [times](Number one, Number other) { return times[one] < times[other]; });
    return order;
}

// Events in an order in which each comes after the one around it.
class OuterFirst {
public:
    OuterFirst(Number count, const Id* parent) {
        for (Number event = 0; event < count; ++event) {
            if (parent[event] < event) continue;
            sort(count, parent);
            break;
        }
    }

    // Calls `visit` with each event; a loop of its own where they are in order, as they mostly are.
    template <typename Visit>
    void visit(Number count, Visit visit) const {
        if (order_.empty())
            for (Number event = 0; event < count; ++event) visit(event);
        else
            for (const Id event : order_) visit(Number(event));
    }

    // Calls `visit` with each event after those inside it.
    template <typename Visit>
    void visit_inner_first(Number count, Visit visit) const {
        if (order_.empty())
            for (Number event = count - 1; event >= 0; --event) visit(event);
        else
            for (auto event = order_.rbegin(); event != order_.rend(); ++event) visit(Number(*event));
    }

private:
    void sort(Number count, const Id* parent) {
        std::vector<bool> placed(std::size_t(count), false);
        std::vector<Id> chain;
        for (Id event = 0; event < count; ++event) {
            for (Id at = event; at >= 0 && !placed[std::size_t(at)]; at = parent[at]) {
                if (chain.size() == std::size_t(count)) throw std::invalid_argument("a cycle");
                chain.push_back(at);
            }
            for (; !chain.empty(); chain.pop_back()) {
                placed[std::size_t(chain.back())] = true;
                order_.push_back(chain.back());
            }
        }
    }

    std::vector<Id> order_;  // empty where events come in this order
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
// Returns 1, or 0 where events are around each other, or there is too little memory.
EXPORTED int stepscope_depths(Number count, const Id* parent, Id* depth) {
    try {
        OuterFirst(count, parent).visit(count, [=](Number event) {
            depth[event] = parent[event] < 0 ? 0 : depth[parent[event]] + 1;
        });
        return 1;
    } catch (...) {
        return 0;
    }
}

// value: of each event, -1 where it has none; that of the innermost event around it afterwards.
// Returns 1, or 0 where events are around each other, or there is too little memory.
EXPORTED int stepscope_inherit(Number count, const Id* parent, Id* value) {
    try {
        OuterFirst(count, parent).visit(count, [=](Number event) {
            if (value[event] < 0 && parent[event] >= 0) value[event] = value[parent[event]];
        });
        return 1;
    } catch (...) {
        return 0;
    }
}

// Events by start; `tracks` and `track` as above. found: of each of `asked` times, the innermost
// event that runs on a lane (a track, or any other number); with `parent` null, the one that
// started last.
// Returns 1, or 0 where there is too little memory.
EXPORTED int stepscope_enclosing(Number count, Number tracks, const Id* track, const Number* start,
                                 const Number* duration, const Id* parent, Number asked,
                                 const Id* lanes, const Number* times, Id* found) {
    try {
        Tracks lists(count, tracks, track, start);
        const auto ended = [=](Id event, Number time) {
            return event >= 0 && start[event] + duration[event] < time;
        };
        std::vector<Id> outer;  // in order of time, what has ended has no use as a way up
        if (parent) outer.assign(parent, parent + count);
        for (const Number at : by_time(asked, times)) {
            Id event = lists.last_started(lanes[at], times[at]);
            while (parent && ended(event, times[at])) {
                Id& next = outer[std::size_t(event)];
                if (ended(next, times[at])) next = outer[std::size_t(next)];
                event = next;
            }
            found[at] = event;
        }
        return 1;
    } catch (...) {
        return 0;
    }
}

// total: of each event, a number of its own; afterwards the sum over it and all events inside it.
// Returns 1, or 0 where events are around each other, or there is too little memory.
EXPORTED int stepscope_totals_inside(Number count, const Id* parent, Number* total) {
    try {
        OuterFirst(count, parent).visit_inner_first(count, [=](Number event) {
            if (parent[event] >= 0) total[parent[event]] += total[event];
        });
        return 1;
    } catch (...) {
        return 0;
    }
}

// own: of each event a code below `codes`, -1 for none. allowed: `codes` + 1 rows of `codes`, for
// each code around an event, and last for none, which codes an event may have in it.
// passed: filled in; an event without an allowed code of its own has that around it.
// Returns 1, or 0 where events are around each other, or there is too little memory.
EXPORTED int stepscope_passed_down(Number count, const Id* parent, const std::int8_t* own,
                                   Number codes, const bool* allowed, std::int8_t* passed) {
    try {
        OuterFirst(count, parent).visit(count, [=](Number event) {
            const std::int8_t outer = parent[event] < 0 ? std::int8_t(-1) : passed[parent[event]];
            const Number row = outer < 0 ? codes : outer;
            passed[event] = own[event] >= 0 && allowed[row * codes + own[event]] ? own[event] : outer;
        });
        return 1;
    } catch (...) {
        return 0;
    }
}
