// Begins and ends that nest as they are, for `slices.py`.

#include <cstdint>
#include <vector>

#include "exported.h"

namespace {

using Number = std::int64_t;

struct Marks {
    const Number* time_ns;
    const bool* is_end;
    const std::int32_t* name;
    Number* match;
};

// Whether the marks from `first` to `last` nest, but for ends before any begin and begins without an end.
bool match_group(const Marks& marks, Number first, Number last, std::vector<Number>& open) {
    open.clear();
    for (Number at = first; at < last; ++at) {
        if (!marks.is_end[at]) {
            open.push_back(at);
        } else if (open.empty()) {  // it may be the end of a begin at the same time
            if (at + 1 < last && marks.time_ns[at + 1] == marks.time_ns[at]) return false;
        } else {
            const Number begin = open.back();
            if (marks.name[at] >= 0 && marks.name[at] != marks.name[begin]) return false;
            marks.match[begin] = at;
            marks.match[at] = begin;
            open.pop_back();
        }
    }
    return true;
}

}  // namespace

// match: of each of `count` marks the other one of its slice, -1 where `pair` has to look for it.
//
// The marks are in order of group, then of time; a name below 0 is none.
// Returns 1, or 0 without memory.
EXPORTED int stepscope_match_marks(Number count, const Number* group, const Number* time_ns,
                                   const bool* is_end, const std::int32_t* name, Number* match) {
    try {
        std::vector<Number> open;
        for (Number at = 0; at < count; ++at) match[at] = -1;
        for (Number first = 0, last = 0; first < count; first = last) {
            while (last < count && group[last] == group[first]) ++last;
            if (match_group({time_ns, is_end, name, match}, first, last, open)) continue;
            for (Number at = first; at < last; ++at) match[at] = -1;
        }
        return 1;
    } catch (...) {
        return 0;
    }
}
