// The simulation of a dependency graph (DAYDREAM, algorithm 1); `graph/simulate.py` calls it, and
// its `simulate_plainly` is the specification.

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include "exported.h"

namespace {

using Number = std::int64_t;

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

struct Graph {
    Number tasks;
    const Number *thread, *occupied, *earliest, *priority, *is_ordered, *first, *target, *delay;
};

// A ready task on an ordered thread cannot be delayed any more, so these tasks are in a heap, and
// the time per task is logarithmic in the number of threads. Ready tasks of other threads change
// their order whenever their thread advances; they are few, and searched linearly.
class Simulation {
public:
    Simulation(const Graph& graph, Number threads, Number* start)
        : graph_(graph), start_(start), ready_at_(graph.earliest, graph.earliest + graph.tasks),
          waits_for_(std::size_t(graph.tasks)), progress_(std::size_t(threads)) {
        for (Number edge = 0; edge < graph.first[graph.tasks]; ++edge)
            ++waits_for_[std::size_t(graph.target[edge])];
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
        start_[next.task] = next.at;
        progress_[std::size_t(graph_.thread[next.task])] = next.at + graph_.occupied[next.task];
        for (Number edge = graph_.first[next.task]; edge < graph_.first[next.task + 1]; ++edge) {
            Number after = graph_.target[edge];
            Number& ready_at = ready_at_[std::size_t(after)];
            ready_at = std::max(ready_at, next.at + graph_.delay[edge]);
            if (!--waits_for_[std::size_t(after)]) add_ready(after);
        }
    }

    const Graph& graph_;
    Number* start_;
    std::vector<Number> ready_at_, waits_for_, progress_, loose_;
    std::priority_queue<Candidate> heap_;
};

}  // namespace

// The start of each task, ns; -1 for tasks blocked by a cycle.
//
// thread, occupied, earliest, priority, start: one number for each of `tasks`.
// is_ordered: for each of `threads`. first: `tasks + 1`. target, delay: for each edge.
// Returns 1, or 0 where there is too little memory.
EXPORTED int stepscope_simulate(Number tasks, Number threads, const Number* thread,
                                const Number* occupied, const Number* earliest,
                                const Number* priority, const Number* is_ordered,
                                const Number* first, const Number* target, const Number* delay,
                                Number* start) {
    try {
        Graph graph{tasks, thread, occupied, earliest, priority, is_ordered, first, target, delay};
        Simulation(graph, threads, start).run();
        return 1;
    } catch (...) {
        return 0;
    }
}

// path: a task, the cause of it, the cause of that and so on; `cause` is -1 for none.
// Returns how many there are, at most as many as tasks.
EXPORTED int stepscope_causes(Number tasks, const Number* cause, Number last, Number* path) {
    Number count = 0;
    for (; last >= 0 && count < tasks; last = cause[last]) path[count++] = last;
    return int(count);
}
