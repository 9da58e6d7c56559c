"""The critical path of a simulated step, and its breakdown by busy side."""

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids, IntArray, Mask, Rows
from stepscope.base.compiled.library import function
from stepscope.graph.simulate import Simulation, library_arguments
from stepscope.trace.columns import gathered
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.table import Text

_NO_STAGE = "none"
_NO_MODULE = "(no module)"


class BusySides(msgspec.Struct, frozen=True):
    """Mean time per step in ms: only the CPU busy, only devices, both, neither."""

    cpu_only_ms: float
    device_only_ms: float
    parallel_ms: float
    idle_ms: float


def breakdown(simulation: Simulation) -> BusySides:
    """How busy times of CPU and devices overlap; the mean over ranks.

    The CPU is busy during tasks and gaps of the training loop's and autograd's threads, except
    waits; a device is busy while any of its streams runs a task.

    Source: DAYDREAM section 6.2 and figure 6.
    """
    graph = simulation.graph
    serves = graph.serving_threads[graph.tasks["thread"]]
    ranks = graph.threads["rank"][graph.tasks["thread"]]
    by_rank: list[Rows | slice] = [slice(None)] if len(graph.ranks) == 1 else [*rows_by_key(ranks).values()]
    parts = [_of_rank(simulation, serves, rows) for rows in by_rank]
    return BusySides(*np.mean(parts, axis=0).tolist())


def _of_rank(simulation: Simulation, serves: Mask, rows: Rows | slice) -> tuple[float, ...]:
    graph = simulation.graph
    start, end = simulation.start_ns[rows], simulation.end_ns[rows]
    host, device_work = serves[rows], graph.on_device[rows]
    marks = graph.tasks["mark"][rows] > 0
    own_rank = int(graph.threads["rank"][graph.tasks["thread"][rows][0]])
    begun = int(start[marks].min()) if marks.any() else 0
    begin = max(begun, int(simulation.earlier_end_ns[own_rank]))
    last = int(end[device_work | marks].max(initial=0))
    cpu = Intervals(start[host], (end + graph.tasks["gap_ns"][rows])[host]).clip(begin, last)
    device = Intervals(start[device_work], end[device_work]).clip(begin, last)
    both = cpu.intersect(device).total()
    alone = cpu.total() - both, device.total() - both
    unit = 1e6 * len(graph.window.steps)
    idle = last - begin - sum(alone) - both
    return alone[0] / unit, alone[1] / unit, both / unit, idle / unit


def critical_path(simulation: Simulation) -> Ids:
    """The tasks (tasks.id) that determine the length of the simulated steps, first to last.

    Each is the dependency that the next one waited for longest. Shortening any other has no effect.
    """
    counts = simulation.graph.on_device | (simulation.graph.tasks["mark"] > 0)
    if not counts.any():
        return np.zeros(0, np.int64)
    return path_to(simulation, int(np.argmax(np.where(counts, simulation.end_ns, -1))))


def path_to(simulation: Simulation, last: int) -> Ids:
    """A task, the one whose end started it, the one whose end started that, first to last."""
    follow = function("stepscope_critical_path")
    path = np.empty(len(simulation.graph), np.int64)
    start = np.ascontiguousarray(simulation.start_ns)
    count = follow(*library_arguments(simulation.graph), start, last, path)
    if not count:
        raise MemoryError(f"too little memory for the path to task {last}")
    return np.ascontiguousarray(path[:count][::-1])


def critical_ms(simulation: Simulation) -> dict[str, dict[str, float]]:
    """The critical path's time by stage and module, and by rank if there are several; mean ms per step."""
    graph, path = simulation.graph, critical_path(simulation)
    if not len(path):
        return {"stages": {}, "modules": {}}
    start = gathered(simulation.start_ns, path)
    until = np.append(start[1:], simulation.end_ns[path[-1]])
    # What comes before is no part of the steps.
    begin = int(simulation.earlier_end_ns[graph.ranks].min())
    spent = np.maximum(until - np.maximum(start, begin), 0) / (1e6 * len(graph.window.steps))
    stages = graph.tasks.text("stage").take(path)
    paths = Text.of(path or "(root)" for path in graph.trace["modules"].text("path"))
    codes = gathered(np.append(paths.codes, np.int32(-1)), gathered(graph.tasks["module"], path))
    result = {
        "stages": _summed(stages.codes, [*stages.values, _NO_STAGE], spent),
        "modules": _summed(codes, [*paths.values, _NO_MODULE], spent),
    }
    if graph.window.rank < 0:
        ranks = graph.threads["rank"][graph.tasks["thread"][path]]
        names = [f"rank {number}" for number in range(int(ranks.max()) + 1)]
        result["ranks"] = _summed(ranks, [*names, ""], spent)
    return result


def _summed(codes: IntArray, names: list[str], spent: Floats) -> dict[str, float]:
    """Totals by name, largest first; code -1 is the last name."""
    places = np.where(codes < 0, len(names) - 1, codes)
    totals = np.bincount(places, spent, len(names))
    order = np.argsort(-totals, kind="stable")
    met = np.bincount(places, minlength=len(names))[order] > 0
    return {names[place]: float(totals[place]) for place in order[met].tolist()}
