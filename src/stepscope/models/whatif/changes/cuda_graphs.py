"""`cuda_graphs`: the whole step launched at once."""

import numpy as np

from stepscope.base.arrays import Rows
from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select
from stepscope.graph.graph_schema import SYNC
from stepscope.models.whatif.change import Change
from stepscope.trace.row_order import ends_run
from stepscope.trace.schema import FORWARD_STAGES

_COMPUTES_NS = 500_000  # to launch takes tens of microseconds: what takes longer computes on the CPU
_CAPTURED = (*FORWARD_STAGES, "zero_grad", "backward", "optimizer")


def cuda_graphs(graph: Graph, pauses: float = 0.0) -> Graph:
    """A CUDA graph launches the device work: the CPU's part of the step takes no time.

    That holds from the first to the last call of forward, loss, backward and optimizer. What is
    around them or follows a wait, what computes on the CPU (such as an optimizer whose operators
    launch no kernel), latencies and order stay.

    Args:
        pauses: how much stays of gaps above 0.5 ms between two calls, of which a graph may not replay
            the cause, from 0 to 1; the range has both.
    """
    if not 0 <= pauses <= 1:
        raise ChangeError(f"cuda_graphs: expected pauses from 0 to 1, found {pauses}")
    if not graph.on_device.any():
        raise ChangeError("cuda_graphs: these steps have no device work")
    if any(select(graph, name=call).any() for call in ("*GraphLaunch*", "*StreamEndCapture*")):
        raise ChangeError("cuda_graphs: these steps launch or capture CUDA graphs already")
    captured = np.any([select(graph, stage=s, on_device=False) for s in _CAPTURED], axis=0)
    if not captured.any():
        raise ChangeError(
            "cuda_graphs: no CPU call belongs to forward, backward or optimizer; a step that was "
            "compiled as a whole is launched at once already"
        )
    calls, kernels = (select(graph, stage="optimizer", category=one) for one in ("cpu_op", "kernel"))
    if calls.any() and not kernels.any():
        captured &= ~select(graph, stage="optimizer")
    captured &= ~(select(graph, category="cpu_op") & (graph.tasks["duration_ns"] >= _COMPUTES_NS))
    rows, last = np.flatnonzero(captured), np.zeros_like(captured)
    last[rows] = np.any([ends_run(graph.tasks[name][rows]) for name in ("thread", "step")], axis=0)
    last[_before_python(graph)] = True
    gaps, between = graph.tasks["gap_ns"], captured & ~graph.tasks.text("category").mask("runtime")
    left = np.where(captured & ~last, np.where(gaps >= _COMPUTES_NS, gaps * pauses, 0), gaps)
    stays = np.where(between & (graph.tasks["duration_ns"] >= _COMPUTES_NS), pauses, 0)
    return scale(graph.with_tasks(gap_ns=np.rint(left)), captured, stays[captured])


def _before_python(graph: Graph) -> Rows:
    """The first task after each wait for the device that Python follows: it uses the result."""
    waits = np.unique(graph.links["target"][graph.links["kind"] == SYNC])
    pauses = np.flatnonzero((graph.tasks["gap_ns"] > 0) & ~graph.on_device)
    place = np.searchsorted(pauses, waits)
    waits, found = waits[place < len(pauses)], pauses[place[place < len(pauses)]]
    return found[graph.tasks["thread"][found] == graph.tasks["thread"][waits]]


CHANGE = Change(
    cuda_graphs,
    group="Launches and waits",
    basis="an upper bound: launching costs nothing",
    assumptions=("shapes and control flow never change; a replay costs the CPU nothing",),
    low={"pauses": 1.0},
    error=0.055,  # the largest of six models on an H200, where graphs copy inputs and gradients
    order=2,
    memory=lambda memory: memory,
    memory_error=0.13,  # the largest of eight models on an H200: a graph keeps inputs and a pool of its own
)
