// When each node of a graph happens; `ranks/longest_path.py` calls it.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "exported.h"

using Number = std::int64_t;

// at: of each node, its earliest time; when it happens afterwards, nan where a cycle blocks it.
// first: `nodes + 1`. target, delay: for each edge.
// Returns 1, or 0 where there is too little memory.
EXPORTED int stepscope_longest_path(Number nodes, const Number* first, const Number* target,
                                    const double* delay, double* at) {
    try {
        std::vector<Number> waits_for(static_cast<std::size_t>(nodes)), ready;
        ready.reserve(waits_for.size());
        for (Number edge = 0; edge < first[nodes]; ++edge)
            ++waits_for[std::size_t(target[edge])];
        for (Number node = 0; node < nodes; ++node)
            if (!waits_for[std::size_t(node)]) ready.push_back(node);
        for (std::size_t done = 0; done < ready.size(); ++done) {
            Number node = ready[done];
            for (Number edge = first[node]; edge < first[node + 1]; ++edge) {
                Number after = target[edge];
                at[after] = std::max(at[after], at[node] + delay[edge]);
                if (!--waits_for[std::size_t(after)]) ready.push_back(after);
            }
        }
        for (Number node = 0; node < nodes; ++node)
            if (waits_for[std::size_t(node)]) at[node] = std::numeric_limits<double>::quiet_NaN();
        return 1;
    } catch (...) {
        return 0;
    }
}
