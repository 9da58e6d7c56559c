"""What a simulated step's length is made of: its critical path, and which side was busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.graph.simulate import Simulation
from stepscope.trace.intervals import Intervals
from stepscope.trace.table import Text

_NO_STAGE = "none"
_NO_MODULE = "(no module)"


@dataclass(frozen=True)
class Breakdown:
    """Mean time a step, ms: only the CPU busy, only devices, both, neither."""

    cpu_only_ms: float
    device_only_ms: float
    parallel_ms: float
    idle_ms: float


def breakdown(simulation: Simulation) -> Breakdown:
    """How the CPU's and the devices' busy time overlap; of several ranks the mean.

    The CPU is busy in tasks and gaps of the training loop's and autograd's threads, not while it
    waits; a device while any of its streams runs a task.

    Source: DAYDREAM section 6.2 and figure 6.
    """
    rank = simulation.graph.threads["rank"]
    parts = [list(_of_rank(simulation, rank == one)) for one in np.unique(rank).tolist()]
    return Breakdown(*np.mean(parts, axis=0).tolist())


def _of_rank(simulation: Simulation, threads: NDArray[np.bool_]) -> tuple[float, ...]:
    graph, start = simulation.graph, simulation.start_ns
    mine = threads[graph.tasks["thread"]]
    end = simulation.end_ns
    serves = graph.threads["main"] > 0
    handed = graph.links["kind"] == graph.links.schema.column("kind").values.index("handover")
    serves[graph.tasks["thread"][graph.links["target"][handed]]] = True
    host, device_work = mine & serves[graph.tasks["thread"]], mine & graph.on_device
    counts = mine & (graph.on_device | (graph.tasks["mark"] > 0))
    marks = mine & (graph.tasks["mark"] > 0)
    begin = int(start[marks].min()) if marks.any() else 0
    last = int(end[counts].max(initial=0))
    cpu = Intervals(start[host], (end + graph.tasks["gap_ns"])[host]).clip(begin, last)
    device = Intervals(start[device_work], end[device_work]).clip(begin, last)
    both = cpu.intersect(device).total()
    alone = cpu.total() - both, device.total() - both
    unit = 1e6 * len(graph.window.steps)
    idle = last - begin - sum(alone) - both
    return alone[0] / unit, alone[1] / unit, both / unit, idle / unit


def critical_path(simulation: Simulation) -> NDArray[np.int64]:
    """The tasks that set the length of the simulated steps, first to last.

    Each is what the next one waited for longest. Shortening any other task gains nothing.

    Returns:
        int64, tasks.id.
    """
    counts = simulation.graph.on_device | (simulation.graph.tasks["mark"] > 0)
    if not counts.any():
        return np.zeros(0, np.int64)
    cause = _cause(simulation).tolist()
    task = int(np.argmax(np.where(counts, simulation.end_ns, -1)))
    path = [task]
    while (task := cause[task]) >= 0:
        path.append(task)
    return np.array(path[::-1])


def critical_ms(simulation: Simulation) -> dict[str, dict[str, float]]:
    """The critical path's time by stage and module, and rank where there are several.

    Mean ms a step, largest first.
    """
    graph, path = simulation.graph, critical_path(simulation)
    if not len(path):
        return {"stages": {}, "modules": {}}
    until = np.append(simulation.start_ns[path[1:]], simulation.end_ns[path[-1]])
    spent = (until - simulation.start_ns[path]) / (1e6 * len(graph.window.steps))
    stages = graph.tasks.text("stage").take(path)
    paths = Text.of(path or "(root)" for path in graph.trace["modules"].text("path"))
    module = graph.tasks["module"][path]
    codes = np.where(module >= 0, np.append(paths.codes, -1)[module], -1)
    result = {
        "stages": _summed(stages.codes, [*stages.values, _NO_STAGE], spent),
        "modules": _summed(codes, [*paths.values, _NO_MODULE], spent),
    }
    if graph.window.rank < 0:
        ranks = graph.threads["rank"][graph.tasks["thread"][path]]
        names = [f"rank {one}" for one in range(int(ranks.max()) + 1)]
        result["ranks"] = _summed(ranks, [*names, ""], spent)
    return result


def _cause(simulation: Simulation) -> NDArray[np.int64]:
    """For each task, one that it started right behind, or -1."""
    edges, start = simulation.graph.edges, simulation.start_ns
    binding = start[edges.source] + edges.delay_ns == start[edges.target]
    # What took no time is passed over for what did, so that the path can not run in place.
    order = np.argsort(edges.delay_ns[binding], kind="stable")
    cause = np.full(len(start), -1, np.int64)
    cause[edges.target[binding][order]] = edges.source[binding][order]
    return cause


def _summed(
    codes: NDArray[np.integer], names: list[str], spent: NDArray[np.float64]
) -> dict[str, float]:
    """Totals by name, largest first; -1 stands for the last name."""
    places = codes.astype(np.int64) % len(names)
    totals = np.bincount(places, spent, len(names))
    order = np.argsort(-totals, kind="stable")
    met = np.isin(order, places)
    return {names[place]: float(totals[place]) for place in order[met].tolist()}
