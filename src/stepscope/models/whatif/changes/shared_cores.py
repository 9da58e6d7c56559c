"""`shared_cores`: several such processes on one machine."""

import numpy as np

from stepscope.base.arrays import Floats, Ids, Times
from stepscope.errors import ChangeError
from stepscope.graph import Graph, Simulation, insert, numbers_after, simulate
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, calibrated, on_cpu
from stepscope.models.whatif.parts.network import blocks_its_caller
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import ends_run


def shared_cores(graph: Graph, processes: int = 2, cores: int = 0) -> Graph:
    """PROCESSES like this one share the cores of one machine; nothing else runs there.

    If they have more threads than there are cores, operators take longer in that proportion; if
    there are more processes than cores, so does the Python between them. If no core is left for
    collectives of these processes, their CPU time is added to the thread that computes, unless
    that thread waits for them; while it computes, they wait for the core as long as they use it.

    Args:
        graph: of steps that a CPU computes, with or without collectives.
        processes: number of processes.
        cores: of the machine; 0 for the number recorded in the trace.
    """
    if not on_cpu(graph):
        raise ChangeError("shared_cores: a device computes these steps, not the CPU")
    capture = graph.trace.metadata.capture
    cores = cores or int(capture.get("cpu_count") or 0)
    if processes < 1 or cores < 1:
        raise ChangeError(
            "shared_cores: expected processes and cores of at least 1, found "
            f"{processes} and {cores or 'an unknown number of cores'}"
        )
    wanted = processes * int(capture.get("threads") or 1)
    alone = max(1.0, processes / cores)  # of one thread
    graph = _slowed(graph, max(1.0, wanted / cores), alone)
    # Calibrated between two, of which each sends all bytes once; a ring sends them more often.
    sent = max(1.0, 2 * (processes - 1) / processes)
    return graph if wanted < cores else _with_copying(graph, alone * sent)


def _slowed(graph: Graph, operators: float, python: float) -> Graph:
    """Stretch what computes: operators of the training loop, and what has one thread."""
    main = graph.of_main_threads
    factor = np.where(main & (graph.tasks["kind"] >= 0), operators, python)
    factor = np.where(graph.tasks.text("category").mask("communication"), 1.0, factor)
    return graph.with_tasks(
        duration_ns=np.rint(graph.tasks["duration_ns"] * factor),
        gap_ns=np.rint(graph.tasks["gap_ns"] * np.where(main, python, 1.0)),
    )


def _with_copying(graph: Graph, slower: float) -> Graph:
    """Add the CPU time of each collective to the thread whose task it waited for last.

    A thread that waits for the collective needs no core meanwhile.
    """
    collective = graph.tasks.text("category").mask("communication") & (graph.tasks["bytes"] > 0)
    collective &= ~blocks_its_caller(graph)
    # One that follows another, as a pull its push, is the other direction of the same transfer.
    into = collective[graph.links["target"]] & ~collective[graph.links["source"]]
    if not into.any():
        return graph
    target, source = graph.links["target"][into], graph.links["source"][into]
    order = np.lexsort((source, target))
    last = order[ends_run(target[order])]
    times = calibrated(graph, "reducing", graph.tasks["bytes"][target[last]], 2)
    if times is None:
        return graph
    cost = slower * times[0]
    graph, new = insert(
        graph,
        source[last],
        ["sharing the core with a collective"] * len(last),
        duration_ns=np.rint(cost),
        category="other",
    )
    return _in_turn(graph, numbers_after(len(graph), new)[target[last]], cost)


def _in_turn(graph: Graph, collectives: Ids, cost: Floats) -> Graph:
    """Lengthen collectives by their waits for a core, of which a thread that computes has half.

    Where that thread computes all the time, a collective waits as long as it computes itself.
    """
    simulation = simulate(graph)
    start, end = simulation.start_ns, _ends(simulation)
    computes = graph.of_main_threads & (simulation.end_ns > start)
    busy = Intervals(start[computes], (simulation.end_ns + graph.tasks["gap_ns"])[computes])
    shared = busy.within(start[collectives], end[collectives])
    part = shared / np.maximum(end[collectives] - start[collectives], 1)
    duration = graph.tasks["duration_ns"].copy()
    duration[collectives] += np.rint(part * cost).astype(np.int64)
    return graph.with_tasks(duration_ns=duration)


def _ends(simulation: Simulation) -> Times:
    """When each task ends, a collective with the phases after it, int64, shape (tasks,)."""
    links, end = simulation.graph.links, simulation.end_ns.copy()
    collective = simulation.graph.tasks.text("category").mask("communication")
    phases = collective[links["source"]] & collective[links["target"]]
    source, target = links["source"][phases], links["target"][phases]
    for row in np.argsort(-simulation.start_ns[target], kind="stable").tolist():  # the last phases first
        end[source[row]] = max(end[source[row]], end[target[row]])
    return end


CHANGE = Change(
    shared_cores,
    group="Distributed training",
    basis="threads per core",
    on_cpu=CpuPrediction(),
    assumptions=(
        "work is divided evenly among the cores and would use as many cores as it has threads; collectives "
        "take the CPU time that they took alone, and share a core evenly with what computes",
    ),
    ranked=False,
)
