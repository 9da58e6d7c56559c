"""Sharding on a CPU, as PyTorch's fully_shard does it over gloo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.calibration import find_calibration, find_operators
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif.parts.blocking_collectives import add_blocking
from stepscope.whatif.parts.cpu_calibration import copy_rate
from stepscope.whatif.parts.fused_on_cpu import step_ns
from stepscope.whatif.parts.layers import add_channel
from stepscope.whatif.parts.network import Network
from stepscope.whatif.parts.sharding_units import Unit

SHARDING_ASSUMPTIONS_ON_CPU = (
    "as fully_shard over gloo: each collective blocks the thread that calls it, and a "
    "reduce-scatter is an all-reduce; idle links, workers that are ready together",
    "copies into and out of shards, and Python for each unit and sharded tensor, take what they "
    "took alone; without a calibration only copies count, as fast as elementwise work",
    "an operator of the weight update takes 1/N of its time, but at least the minimum of its name "
    "plus the overhead of sharded tensors",
)
_PASSES = 8.5  # over a unit's bytes, for two processes, two gathers and a scatter


def shard_on_cpu(graph: Graph, change: str, network: Network, units: Sequence[Unit]) -> Graph:
    """Gather units where they are used, and scatter gradients where they are ready.

    There are no streams on a CPU: the thread waits for each collective. Copies, in units of the
    gathered bytes and for N workers: before a gather 2 / N (into its buffer and into gloo's), after
    it 2 (out of gloo's buffer, and to the parameters); before a reduce-scatter 2 (gradients to a
    buffer, and from there to gloo's), after it 1 / N.

    Args:
        graph: of training steps of one worker.
        change: the name of the change, for its errors.
        network: of gloo.
        units: of all steps.

    Raises:
        ChangeError: if there is no weight update.

    Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py;
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, allgather and _reduce_scatter_base.
    """
    share, copied = 1 / network.workers, _copies_ns(graph, units)
    graph = _updated(graph, change, share)
    graph, channel = add_channel(graph, "shards")
    again = [unit for unit in units if not unit.stays]
    size = np.array([unit.bytes for unit in (*units, *again)], np.float64)
    dropped = [not unit.stays for unit in units]
    a_copy = np.append(copied, copied[dropped])
    needs = [*(unit.used for unit in units), *(unit.begun for unit in again)]
    graph, number = add_blocking(
        graph, channel, needs, [f"all-gather {place}" for place in range(len(size))],
        network.all_gather_ns(size), size=size, copied_ns=(2 * share * a_copy, 2 * a_copy),
        in_front=True,
    )  # fmt: skip
    count = len(units)
    size, a_copy = size[:count], a_copy[:count]
    ready = number[[unit.ready[-1] for unit in units]]
    return add_blocking(
        graph, channel, ready, [f"reduce-scatter {place}" for place in range(count)],
        network.reduce_scatter_ns(size), size=size, copied_ns=(2 * a_copy, share * a_copy),
    )[0]  # fmt: skip


def _copies_ns(graph: Graph, units: Sequence[Unit]) -> Floats:
    """Time of one pass over each unit's bytes, ns."""
    calibration = find_calibration(graph.trace.metadata)
    rows = calibration.sharding.get("units") if calibration else None
    if rows:
        return np.array([step_ns(rows, unit.tensors, unit.bytes) / _PASSES for unit in units])
    size = np.array([unit.bytes for unit in units], np.float64)
    rate = copy_rate(graph, size.sum() / len(graph.window.steps))
    return size / rate if rate else np.zeros(len(units))


def _updated(graph: Graph, change: str, share: float) -> Graph:
    """Let the weight update work on a share of each tensor, with as many operators."""
    tasks = graph.tasks
    rows = np.flatnonzero(tasks.text("stage").mask("optimizer") & (tasks["kind"] >= 0))
    if not len(rows):
        raise ChangeError(f"{change}: these steps have no weight update")
    name, length = tasks["name"][rows], tasks["duration_ns"].copy()
    least = np.full(name.max() + 1, np.inf)
    np.minimum.at(least, name, length[rows])
    length[rows] = np.rint(least[name] + share * (length[rows] - least[name]))
    first = _first_tasks(graph, rows)
    calibration = find_calibration(graph.trace.metadata)
    length[first] += round(calibration.sharding.get("operator", 0) if calibration else 0)
    return graph.with_tasks(duration_ns=length)


def _first_tasks(graph: Graph, rows: Ids) -> Ids:
    """The first of these tasks in each outermost operator."""
    optimizer = graph.trace.events.text("stage").mask("optimizer")
    around = np.append(find_operators(graph.trace, optimizer).around, -1)
    operator = around[graph.tasks["event"][rows]]
    _, place = np.unique(operator, return_index=True)
    first = rows[place]
    return first[operator[place] >= 0]
