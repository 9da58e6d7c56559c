// The simulation of a dependency graph (DAYDREAM, algorithm 1); `graph/simulate.py` calls it, and
// its `simulate_plainly` is the specification.

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include "exported.h"

namespace {

using Number = std::int64_t;
using Id = std::int32_t;

struct Candidate {
    Number at, priority, task;

    // Earlier start, then higher priority, then lower id.
    bool comes_before(const Candidate& other) const {
        if (at != other.at) return at < other.at;
        if (priority != other.priority) return priority > other.priority;
        return task < other.task;
    }
    bool operator<(const Candidate& other) const { return other.comes_before(*this); }
};

// The columns of a graph's tables. `by_source` has the rows of the links, those of task u from
// `first[u]` to `first[u + 1] - 1`.
struct Graph {
    Number tasks;
    const Id* thread;
    const Number *duration, *gap, *earliest;
    const Id* priority;
    const std::int8_t* is_ordered;
    Number links;
    const Number* first;
    const Id *by_source, *target;
    const std::int8_t* kind;
    const Number* lag;
    Number launch;

    // Whether a task waits for the one above it, since their thread runs them in order.
    bool follows(Number task) const {
        return task > 0 && task < tasks && thread[task] == thread[task - 1] &&
               is_ordered[thread[task]];
    }

    // Calls `visit` with each task that waits for `task`, and the time from the start of `task` to
    // its earliest start: the next one of its thread, then links as they are in their table.
    template <typename Visit>
    void each_edge(Number task, Visit visit) const {
        if (follows(task + 1)) visit(task + 1, duration[task] + gap[task]);
        for (Number at = first[task]; at < first[task + 1]; ++at) {
            const Id link = by_source[at];
            const Number length = kind[link] == launch ? 0 : duration[task];
            visit(Number(target[link]), std::max(lag[link] + length, Number(0)));
        }
    }
};

// A ready task on an ordered thread cannot be delayed any more, so these tasks are in a heap, and
// the time per task is logarithmic in the number of threads. Ready tasks of other threads change
// their order whenever their thread advances; they are few, and searched linearly.
class Simulation {
public:
    Simulation(const Graph& graph, Number threads, Number* start)
        : graph_(graph), start_(start), ready_at_(graph.earliest, graph.earliest + graph.tasks),
          waits_for_(std::size_t(graph.tasks)), progress_(std::size_t(threads)) {
        for (Number task = 1; task < graph.tasks; ++task)
            waits_for_[std::size_t(task)] = graph.follows(task);
        for (Number link = 0; link < graph.links; ++link)
            ++waits_for_[std::size_t(graph.target[link])];
    }

    void run() {
        std::fill(start_, start_ + graph_.tasks, -1);
        for (Number task = 0; task < graph_.tasks; ++task)
            if (!waits_for_[std::size_t(task)]) add_ready(task);
        while (!heap_.empty() || !loose_.empty()) begin(next());
    }

private:
    void add_ready(Number task) {
        if (graph_.is_ordered[graph_.thread[task]])
            heap_.push({ready_at_[std::size_t(task)], graph_.priority[task], task});
        else
            loose_.push_back(task);
    }

    Candidate next() {
        std::size_t place = loose_.size();
        Candidate best = heap_.empty() ? Candidate{INT64_MAX, INT64_MIN, INT64_MAX} : heap_.top();
        for (std::size_t other = 0; other < loose_.size(); ++other) {
            Number task = loose_[other];
            Number free = progress_[std::size_t(graph_.thread[task])];
            Candidate candidate{std::max(ready_at_[std::size_t(task)], free), graph_.priority[task],
                                task};
            if (candidate.comes_before(best)) place = other, best = candidate;
        }
        if (place == loose_.size()) {
            heap_.pop();
        } else {
            loose_[place] = loose_.back();
            loose_.pop_back();
        }
        return best;
    }

    void begin(const Candidate& next) {
        const Number task = next.task, occupied = graph_.duration[task] + graph_.gap[task];
        start_[task] = next.at;
        progress_[std::size_t(graph_.thread[task])] = next.at + occupied;
        graph_.each_edge(task, [&](Number after, Number delay) { release(after, next.at + delay); });
    }

    // A task that waited for one thing less, and starts no earlier than this.
    void release(Number task, Number earliest) {
        Number& ready_at = ready_at_[std::size_t(task)];
        ready_at = std::max(ready_at, earliest);
        if (!--waits_for_[std::size_t(task)]) add_ready(task);
    }

    const Graph& graph_;
    Number* start_;
    std::vector<Number> ready_at_;
    std::vector<Id> waits_for_;
    std::vector<Number> progress_, loose_;
    std::priority_queue<Candidate> heap_;
};

}  // namespace

// The start of each task, ns; -1 for tasks blocked by a cycle.
//
// thread, duration, gap, earliest, priority, start: one number for each of `tasks`.
// is_ordered: for each of `threads`. first: `tasks + 1`. by_source, target, kind, lag: for each of
// `links`. launch: the kind whose lag counts from the start of the source.
// Returns 1, or 0 where there is too little memory.
EXPORTED int stepscope_simulate(Number tasks, Number threads, Number links, const Id* thread,
                                const Number* duration, const Number* gap, const Number* earliest,
                                const Id* priority, const std::int8_t* is_ordered,
                                const Number* first, const Id* by_source, const Id* target,
                                const std::int8_t* kind, const Number* lag, Number launch,
                                Number* start) {
    try {
        const Graph graph{tasks,      thread, duration, gap,       earliest, priority,
                          is_ordered, links,  first,    by_source, target,   kind,
                          lag,        launch};
        Simulation(graph, threads, start).run();
        return 1;
    } catch (...) {
        return 0;
    }
}

// path: the last task, then always the one whose end started the one before. Of several the one
// that it waited for longest, so that the path cannot run in a cycle; the last of equal ones.
//
// Columns as above. start: as simulated. Returns how many there are, 0 where there is too little
// memory.
EXPORTED int stepscope_critical_path(Number tasks, Number, Number links, const Id* thread,
                                     const Number* duration, const Number* gap,
                                     const Number* earliest, const Id* priority,
                                     const std::int8_t* is_ordered, const Number* first,
                                     const Id* by_source, const Id* target,
                                     const std::int8_t* kind, const Number* lag, Number launch,
                                     const Number* start, Number last, Number* path) {
    try {
        const Graph graph{tasks,      thread, duration, gap,       earliest, priority,
                          is_ordered, links,  first,    by_source, target,   kind,
                          lag,        launch};
        std::vector<Id> cause(std::size_t(tasks), -1);
        std::vector<Number> waited(std::size_t(tasks), -1);
        for (Number task = 0; task < tasks; ++task)
            graph.each_edge(task, [&](Number after, Number delay) {
                const auto at = std::size_t(after);
                if (start[task] + delay != start[after] || delay < waited[at]) return;
                cause[at] = Id(task), waited[at] = delay;
            });
        Number count = 0;
        for (; last >= 0 && count < tasks; last = cause[std::size_t(last)]) path[count++] = last;
        return int(count);
    } catch (...) {
        return 0;
    }
}
