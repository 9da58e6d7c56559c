// The order of events by start; `trace/row_order.py` calls it, and `tests/oracles/nesting.py` is
// the specification.
//
// Events are put into buckets by start, about four in each, and each bucket is sorted: recordings
// are nearly in order, so all this reads and writes memory almost from its start to its end.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exported.h"

using Number = std::int64_t;
using Id = std::int32_t;

namespace {

constexpr Number EVENTS_PER_BUCKET = 4, FEW = 32;

struct Events {
    const Number *start, *duration;

    // Whether one event comes before another that follows it as recorded.
    bool is_before(Id one, Id other) const {
        return start[one] != start[other] ? start[one] < start[other]
                                          : duration[one] >= duration[other];
    }

    bool operator()(Id one, Id other) const {
        return one < other ? is_before(one, other) : !is_before(other, one);
    }
};

bool is_in_order(Number count, const Events& events) {
    for (Id event = 1; event < count; ++event)
        if (!events.is_before(event - 1, event)) return false;
    return true;
}

void sort(const Events& events, Id* begin, Id* end) {
    if (end - begin > FEW) {
        std::sort(begin, end, events);
        return;
    }
    for (Id* at = begin; at < end; ++at) {
        const Id event = *at;
        Id* to = at;
        for (; to > begin && !events.is_before(to[-1], event); --to) *to = to[-1];
        *to = event;
    }
}

void sort_all(Number count, const Events& events, Id* order) {
    const auto [least, most] = std::minmax_element(events.start, events.start + count);
    const auto bucket = [start = events.start, least = std::uint64_t(*least)](Id event) {
        return std::uint64_t(start[event]) - least;
    };
    const std::uint64_t range = std::uint64_t(*most) - std::uint64_t(*least);
    int shift = 0;
    while (shift < 63 && range >> shift > std::uint64_t(count / EVENTS_PER_BUCKET)) ++shift;
    std::vector<Id> ends(std::size_t(range >> shift) + 2);
    for (Id event = 0; event < count; ++event) ++ends[(bucket(event) >> shift) + 1];
    for (std::size_t at = 1; at < ends.size(); ++at) ends[at] += ends[at - 1];
    for (Id event = 0; event < count; ++event) order[ends[bucket(event) >> shift]++] = event;
    Id begin = 0;
    for (Id end : ends) {
        sort(events, order + begin, order + end);
        begin = end;
    }
}

}  // namespace

// order: filled in.
// Returns 1, 2 where events are in that order already, 0 where there is too little memory.
EXPORTED int stepscope_start_order(Number count, const Number* start, const Number* duration,
                                   Id* order) {
    try {
        const Events events{start, duration};
        if (is_in_order(count, events)) return 2;
        sort_all(count, events, order);
        return 1;
    } catch (...) {
        return 0;
    }
}
