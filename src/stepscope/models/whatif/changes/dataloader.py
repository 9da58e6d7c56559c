"""`dataloader`: worker processes make the batches."""

import numpy as np

from stepscope.errors import ChangeError
from stepscope.facts.roofline.formulas import call_of
from stepscope.graph import Graph, select, simulate
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, calibrated, on_cpu
from stepscope.models.whatif.parts.layers import followed, scaled_with_gaps
from stepscope.trace.recorded_steps import cpus_of

_WORKERS = "_MultiProcessingDataLoaderIter"


def dataloader(graph: Graph, workers: int = 0, computing: float = 1.0) -> Graph:
    """WORKERS processes load the data; with 0 of them batches are always ready.

    With a number of workers, a step lasts as long as the longest of three: the training loop with
    fetching instead of loading; the loading of a batch divided by the workers; all computation
    divided by the cores, if the trace records how many there are.

    Args:
        workers: number of worker processes; 0 for batches that are always ready and cost nothing.
        computing: the share of loading that computes; the rest waits, such as for a disk.
    """
    if workers < 0 or not 0 <= computing <= 1:
        raise ChangeError(
            "dataloader: expected workers of at least 0 and computing from 0 to 1, "
            f"found {workers} and {computing}"
        )
    loading = select(graph, stage="data_loading", on_device=False) & graph.of_main_threads
    loading &= np.append(graph.trace.events["scope"], -1)[graph.tasks["event"]] < 0  # in no compiled program
    times = graph.tasks["duration_ns"] * loading + graph.tasks["gap_ns"] * followed(graph, loading)
    if not times.any():
        raise ChangeError("dataloader: the training loop spends no time on data loading")
    if not workers:
        return scaled_with_gaps(graph, loading, 0)
    if graph.trace.events.text("name").where(lambda name: _WORKERS in name).any():
        raise ChangeError(
            "dataloader: workers load the data already, and the trace does not show "
            "how long a batch takes them"
        )
    result, ranks = graph, graph.threads["rank"][graph.tasks["thread"]]
    rest_ns = float(simulate(scaled_with_gaps(graph, loading, 0)).step_ns.mean())
    for rank in graph.ranks:  # each has workers of its own
        own = loading & (ranks == rank)
        if batch_ns := float(times[own].sum()) / len(graph.window.steps):
            left_ns = _wait_ns(graph, rest_ns, batch_ns, workers, computing)
            result = scaled_with_gaps(result, own, left_ns / batch_ns)
    return result


def _wait_ns(graph: Graph, rest_ns: float, batch_ns: float, workers: int, computing: float) -> float:
    """Time that the training loop still spends on a batch: fetching it and waiting for it."""
    times = calibrated(graph, "loading", [_batch_bytes(graph)], 1, 2) or np.zeros((2, 1))
    fetch_ns, send_ns = (float(column[0]) for column in times)
    batch_ns += send_ns
    capture = graph.trace.metadata.capture
    cores = cpus_of(capture)
    threads = int(capture.get("threads") or 1) if on_cpu(graph) else 1
    work_ns = batch_ns * computing + rest_ns * threads + fetch_ns
    shared_ns = work_ns / cores if cores else 0.0
    return max(rest_ns + fetch_ns, batch_ns / workers, shared_ns) - rest_ns


def _batch_bytes(graph: Graph) -> float:
    """Size of the batch: the largest tensor stacked during data loading."""
    events = graph.trace.events
    stacked = events.text("name").mask("aten::stack") & events.text("stage").mask("data_loading")
    rows = np.flatnonzero(stacked & np.isin(events["step"], graph.window.steps))
    calls = (call_of(graph.trace, row) for row in rows.tolist())
    return max((sum(tensor.bytes for tensor in call.inputs[0]) for call in calls if call.inputs), default=0)


CHANGE = Change(
    dataloader,
    group="Data loading",
    basis="an upper bound: loading costs nothing; with workers=N, N processes share the loading",
    on_cpu=CpuPrediction(),
    assumptions=(
        "batches are ready in time, and loading slows nothing else down; with a number of workers, "
        "they share the cores with the training loop",
    ),
    high={"computing": 0.0},
    application=Application(
        "each `DataLoader` gets `num_workers=N`, 2 by default",
        arguments=("workers",),
        defaults={"workers": 2},
    ),
)
