"""`fsdp` where the operators are the work: as PyTorch's fully_shard does it over gloo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif.blocking import hold_up
from stepscope.whatif.calibrated import copy_rate
from stepscope.whatif.layers import add_channel
from stepscope.whatif.network import Network
from stepscope.whatif.units import Unit

ASSUMED = (
    "as fully_shard over gloo: each collective holds up the thread that calls it, a reduce-scatter "
    "is an all-reduce; links that are free, workers ready together",
    "copies into and out of shards are as fast as calibrated, else as this step's elementwise "
    "operators; what Python does for each unit and each sharded tensor is not counted",
    "an operator of the weight update takes the n-th part of its time, but for what one of its "
    "name takes at least",
)


def fsdp_on_cpu(graph: Graph, change: str, network: Network, units: Sequence[Unit]) -> Graph:
    """Units are gathered where they are used, and gradients scattered where they are ready.

    There are no streams on a CPU: the thread waits for each collective. Copies, in units of the
    gathered bytes and for n workers: before a gather 2 / n (into its buffer, and to its place in
    gloo's), after it 2 (out of gloo's, and to the parameters); before a reduce-scatter 2 (gradients
    to a buffer, and gloo's of that), after it 1 / n.

    Args:
        graph: of training steps of one worker.
        change: for whom, as a refusal says it.
        network: gloo's.
        units: of all steps.

    Raises:
        ChangeError: if there is no weight update.

    Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py;
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, allgather and _reduce_scatter_base.
    """
    share, whole = 1 / network.workers, sum(unit.bytes for unit in units) / len(graph.window.steps)
    rate = copy_rate(graph, whole)
    graph = _updated(graph, change, share)
    graph, channel = add_channel(graph, "shards")
    again = [unit for unit in units if not unit.stays]
    size = np.array([unit.bytes for unit in (*units, *again)], np.float64)
    a_copy = size / rate if rate else np.zeros(len(size))
    needs = [*(unit.used for unit in units), *(unit.begun for unit in again)]
    graph, number = hold_up(
        graph, channel, needs, [f"all-gather {place}" for place in range(len(size))],
        network.gather_ns(size), size=size, copied_ns=(2 * share * a_copy, 2 * a_copy),
        in_front=True,
    )  # fmt: skip
    count = len(units)
    size, a_copy = size[:count], a_copy[:count]
    ready = number[[unit.ready[-1] for unit in units]]
    return hold_up(
        graph, channel, ready, [f"reduce-scatter {place}" for place in range(count)],
        network.reduce_scatter_ns(size), size=size, copied_ns=(2 * a_copy, share * a_copy),
    )[0]  # fmt: skip


def _updated(graph: Graph, change: str, share: float) -> Graph:
    """The weight update of a part of each tensor, by as many operators."""
    tasks = graph.tasks
    rows = np.flatnonzero(tasks.text("stage").mask("optimizer") & (tasks["kind"] >= 0))
    if not len(rows):
        raise ChangeError(f"{change}: no weight update in these steps")
    name, length = tasks["name"][rows], tasks["duration_ns"].copy()
    least = np.full(name.max() + 1, np.inf)
    np.minimum.at(least, name, length[rows])
    length[rows] = np.rint(least[name] + share * (length[rows] - least[name]))
    return graph.with_tasks(duration_ns=length)
