"""A graph whose CPU runs at the pace of steps that nothing watched.

Recording makes launches longer, so a change that leaves the CPU as the limit would be predicted too
slow. The replay of an anchored graph is the unwatched step, and predictions are absolute times.

A CPU that waited for room in its device's queue is slower between the waits than without. Calls
after a wait find cold caches, and a launch that waits hides what it takes. A change that makes
the device faster ends the waits, so the CPU may then be faster than it was recorded.
"""

from collections.abc import Callable

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.graph import Graph, Simulation, scale, simulate
from stepscope.graph.graph_schema import SYNC
from stepscope.trace.recorded_steps import apart_ms
from stepscope.trace.row_order import begins_run
from stepscope.trace.sets import distinct, mask_of, members
from stepscope.trace.trace import Trace

_LEAST_PACE, _MOST_PACE = 0.2, 4.0  # of the recorded pace; chosen: beyond, the steps are others
_ROUNDS = 16  # of bisection: the pace to within 0.01 %
_LIMITS = 0.3  # of a CPU that is slower, the share by which the step is; chosen: it limits the step
# From run to run the same launches take 1.2 to 1.5 times as long on the hosts of two H200s.
OTHER_PACE = 1.3  # of CPU times, or as much shorter; between these
# Of the recorded pace, without waits: 31.7 of 45.8 ms for GPT-2 on an H200 with an Intel Xeon, 21.9 of
# 26.1 ms for BERT, 32 of 38 ms for ResNet-50.
FREE_PACE = 0.7  # of recorded CPU times; the smallest of the three measured ratios is 0.69


def host_ms(graph: Graph) -> float:
    """The step if the device took no time: what the CPU needs to launch it, ms."""
    columns = {name: np.where(graph.on_device, 0, graph.tasks[name]) for name in ("duration_ns", "gap_ns")}
    return step_ms(graph.with_tasks(**columns))


def step_ms(graph: Graph) -> float:
    """The mean simulated step, ms."""
    return mean_ms(simulate(graph))


def mean_ms(simulation: Simulation) -> float:
    """The mean step of a simulation, ms."""
    return float(simulation.step_ns.mean()) / 1e6


def overlapping_ms(simulation: Simulation) -> float:
    """The step if the next one does not wait for its device work: what the busiest side takes, ms."""
    marks = np.sort(simulation.start_ns[simulation.graph.tasks["mark"] > 0])
    on_cpu = float(marks[-1] - marks[0]) if len(marks) else 0.0
    return min(max(float(busiest_ns(simulation.graph)[-1]), on_cpu) / 1e6, mean_ms(simulation))


def busiest_ns(graph: Graph, counts_cpu: bool = True) -> Floats:
    """What the busiest side, or only the busiest stream, takes for each step, ns, shape (steps,).

    A thread for which no other waits, as one that watches collectives, sleeps in its gaps.
    """
    tasks, steps, threads = graph.tasks, graph.window.steps, len(graph.threads)
    source, target = (tasks["thread"][graph.links[end]] for end in ("source", "target"))
    waited = mask_of(source[source != target], threads)
    works = counts_cpu & (graph.on_device | members(tasks["thread"], waited))
    mine = np.isin(tasks["step"], steps) & (counts_cpu | graph.on_device)
    place = np.searchsorted(steps, tasks["step"][mine]) * threads + tasks["thread"][mine]
    spent = (tasks["duration_ns"] + np.where(works, tasks["gap_ns"], 0))[mine]
    busy = np.bincount(place, spent, len(steps) * threads).reshape(len(steps), threads)
    return np.asarray(busy.max(axis=1, initial=0.0), np.float64)


def unwatched_ms(trace: Trace) -> tuple[float | None, float | None]:
    """The step that nothing recorded, and what its CPU needs, ms, as far as a capture has timed them."""
    capture = trace.metadata.capture
    step, apart = (capture.get("unrecorded_steps") or {}).get("median_ns"), apart_ms(capture)
    return step and step / 1e6, apart and apart[0]


def anchored(graph: Graph, step: float | None = None, host: float | None = None) -> Graph:
    """The graph at the CPU's unwatched pace; the same graph where neither time says anything about it.

    `step` is the step that nothing watched, ms, used where the CPU limits it; `host` is what its
    CPU needs, launching into an empty queue, ms, used if it is known.
    """
    if not graph.on_device.any():
        return graph
    if host is not None:
        return _slowed_to(graph, host_ms, host)
    return _slowed_to(graph, step_ms, step) if step is not None and _cpu_limits(graph) else graph


def _cpu_limits(graph: Graph) -> bool:
    slower, faster = (step_ms(at_pace(graph, pace)) for pace in (1.1, 0.9))
    return (slower - faster) / (0.2 * step_ms(graph)) >= _LIMITS


def at_pace(graph: Graph, pace: float) -> Graph:
    """The graph whose CPU takes so many times its time, as without waits for room, or in another run."""
    return scale(graph, ~graph.on_device, pace, gaps=True)


def _slowed_to(graph: Graph, measure: Callable[[Graph], float], target: float) -> Graph:
    low, high = _LEAST_PACE, _MOST_PACE
    for _ in range(_ROUNDS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if measure(at_pace(graph, middle)) < target else (low, middle)
    return at_pace(graph, (low * high) ** 0.5)


def waited_for_room(graph: Graph) -> bool:
    """Whether launches waited for the end of other work, which may not be recorded."""
    links, on_device, event = graph.links, graph.on_device, graph.tasks["event"]
    waits = (links["kind"] == SYNC) & on_device[links["source"]] & ~on_device[links["target"]]
    launched = np.full(len(graph.trace.events) + 1, -1, np.int64)  # the last is for no event
    launched[event[graph.launches["target"]]] = event[graph.launches["source"]]
    callers = distinct(launched[launched >= 0])
    waiting, source = event[links["target"][waits]], links["source"][waits]
    # A copy that its call waits for, or what was queued before that.
    own = (launched[event[source]] == waiting) | (launched[np.append(event, -1)[source + 1]] == waiting)
    # Tasks start no earlier than their rank, and the first of a thread when the thread does.
    since = graph.tasks["earliest_ns"] > np.append(0, graph.tasks["earliest_ns"][:-1])
    paced = event[~on_device & since & ~begins_run(graph.tasks["thread"])]
    return bool((np.isin(waiting, callers) & ~own).any() or np.isin(paced, callers).any())
