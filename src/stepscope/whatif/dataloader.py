"""`dataloader`: what if other processes made the batches?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.calibration import find_calibration
from stepscope.calibration.calibration import between
from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select, simulate
from stepscope.whatif.calibrated import on_cpu

Mask = NDArray[np.bool_]
_WORKERS = "_MultiProcessingDataLoaderIter"


def dataloader(graph: Graph, workers: int = 0, computing: float = 1.0) -> Graph:
    """Batches are made by WORKERS processes; by default they are always there.

    A step then lasts as long as the longest of three: the training loop without loading, but with
    fetching what a worker made; a batch, divided among the workers; all that is computed, divided
    among the cores, where the trace tells how many there are.

    Args:
        graph: any graph.
        workers: how many; 0 for so many that batches are always there, and cost nothing.
        computing: the share of a batch's time that computes; the rest waits, as for a disk.

    Raises:
        ChangeError: if the training loop spends no time on loading, or workers do that already.
    """
    if workers < 0 or not 0 <= computing <= 1:
        raise ChangeError("dataloader: expected at least 0 workers and a computing share of 0 to "
                          f"1, found {workers} and {computing}")  # fmt: skip
    loading = select(graph, stage="data_loading", on_device=False)
    loading &= (graph.threads["main"] > 0)[graph.tasks["thread"]]
    total_ns = float((graph.tasks["duration_ns"] + graph.tasks["gap_ns"])[loading].sum())
    if not total_ns:
        raise ChangeError("dataloader: the training loop spends no time on loading data")
    if not workers:
        return scale(graph, loading, 0, gaps=True)
    if graph.trace.events.text("name").where(lambda name: _WORKERS in name).any():
        raise ChangeError("dataloader: workers make the batches already, and how long one takes "
                          "them is not in the trace")  # fmt: skip
    batch_ns = total_ns / len(graph.window.steps)
    left_ns = _wait_ns(graph, loading, batch_ns, workers, computing)
    return scale(graph, loading, left_ns / batch_ns, gaps=True)


def _wait_ns(graph: Graph, loading: Mask, batch_ns: float, workers: int, computing: float) -> float:
    """What the training loop still spends on a batch: fetching it, and waiting for it."""
    rest_ns = float(simulate(scale(graph, loading, 0, gaps=True)).step_ns.mean())
    fetch_ns, hand_ns = _handover_ns(graph)
    batch_ns += hand_ns
    capture = graph.trace.metadata.capture
    cores = int(capture.get("cpu_count") or 0)
    threads = int(capture.get("threads") or 1) if on_cpu(graph) else 1
    work_ns = batch_ns * computing + rest_ns * threads + fetch_ns
    shared_ns = work_ns / cores if cores else 0.0
    return max(rest_ns + fetch_ns, batch_ns / workers, shared_ns) - rest_ns


def _handover_ns(graph: Graph) -> tuple[float, float]:
    """What a batch costs the loop and the worker more, as calibrated; 0 where that was not done."""
    calibration = find_calibration(graph.trace.metadata)
    if calibration is None or not calibration.loading:
        return 0.0, 0.0
    size = _batch_bytes(graph)
    return between(calibration.loading, size, 1), between(calibration.loading, size, 2)


def _batch_bytes(graph: Graph) -> float:
    """The largest tensor that is stacked while data are loaded: the batch, as it is collated."""
    events = graph.trace.events
    stacked = events.text("name").mask("aten::stack") & events.text("stage").mask("data_loading")
    rows = np.flatnonzero(stacked & np.isin(events["step"], graph.window.steps))
    return 4 * max(
        (_elements(graph.trace.event_arguments(row)) for row in rows.tolist()), default=0
    )


def _elements(arguments: dict[str, Any]) -> int:
    dims = arguments.get("Input Dims") or [[]]
    return sum(int(np.prod(size)) for size in dims[0] if isinstance(size, list))
