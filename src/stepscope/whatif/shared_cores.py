"""`shared_cores`: what if several such processes computed on one machine?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.calibration import find_calibration
from stepscope.calibration.calibration import between
from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert
from stepscope.trace.order import ends_run
from stepscope.whatif.blocking import held_up
from stepscope.whatif.calibrated import on_cpu

Ids = NDArray[np.int64]


def shared_cores(graph: Graph, processes: int = 2, cores: int = 0) -> Graph:
    """PROCESSES like this one share the cores of one machine; nothing else runs there.

    Where they have more threads than there are cores, operators take longer in that proportion. And
    where no core is left for collectives, their CPU time is added to the thread that computes.

    Args:
        graph: of a step that a CPU computes, with collectives or without.
        processes: how many there are.
        cores: of the machine; 0 for as many as the trace tells.

    Raises:
        ChangeError: if a device computes the step, or it is not known how many cores there are.
    """
    if not on_cpu(graph):
        raise ChangeError("shared_cores: a device computes these steps, not the CPU's cores")
    capture = graph.trace.metadata.capture
    cores = cores or int(capture.get("cpu_count") or 0)
    if processes < 1 or cores < 1:
        raise ChangeError("shared_cores: expected at least 1 process, and cores, which the trace "
                          f"does not tell; found {processes} and {cores}")  # fmt: skip
    wanted = processes * int(capture.get("threads") or 1)
    graph = _slowed(graph, max(1.0, wanted / cores))
    return graph if wanted < cores else _with_copying(graph)


def _slowed(graph: Graph, factor: float) -> Graph:
    """Operators of the training loop's thread take longer; Python between them does not."""
    computes = graph.tasks["kind"] >= 0
    computes &= (graph.threads["main"] > 0)[graph.tasks["thread"]]
    length = np.where(computes, graph.tasks["duration_ns"] * factor, graph.tasks["duration_ns"])
    return graph.with_tasks(duration_ns=np.rint(length))


def _with_copying(graph: Graph) -> Graph:
    """The CPU time of each collective, taken from the thread whose task it waited for last.

    A thread that waits for the collective meanwhile needs no core.
    """
    calibration = find_calibration(graph.trace.metadata)
    speaks = graph.tasks.text("category").mask("communication") & (graph.tasks["bytes"] > 0)
    speaks &= ~held_up(graph)
    into = speaks[graph.links["target"]]
    if calibration is None or not calibration.reducing or not into.any():
        return graph
    target, source = graph.links["target"][into], graph.links["source"][into]
    order = np.lexsort((source, target))
    last = order[ends_run(target[order])]
    sizes = graph.tasks["bytes"][target[last]]
    cost = np.array([between(calibration.reducing, size, 2) for size in sizes.tolist()])
    graph, _ = insert(
        graph, source[last], ["sharing the core with a collective"] * len(last),
        duration_ns=np.rint(cost), category="other",
    )  # fmt: skip
    return graph
