"""Weight updates on a CPU: fused into one pass, or sharded over workers, as calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.facts.roofline.formulas import call_of
from stepscope.graph import Graph, remove
from stepscope.models.calibration.calibration import Calibration, between, find_calibration, find_operators
from stepscope.models.whatif.cpu.calibrated import copy_rate, needed_calibration
from stepscope.models.whatif.parts.layers import add_channel, first_of, fusible_steps, optimizer_class
from stepscope.models.whatif.parts.network import Network, add_blocking
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    from stepscope.models.whatif.parts.sharding import Unit

_LARGE = 1 << 16  # elements of a tensor, from which the cost per tensor no longer matters
# The operators that update the weights, once each, in torch.optim's loops and `foreach` variants.
_UPDATES = {
    "Adam": ("aten::addcdiv_", "aten::_foreach_addcdiv_"),
    "AdamW": ("aten::addcdiv_", "aten::_foreach_addcdiv_"),
    "Adagrad": ("aten::addcdiv_", "aten::_foreach_addcdiv_"),
    "SGD": ("aten::add_", "aten::_foreach_add_"),
}
_MOMENTUM = ("aten::mul_", "aten::_foreach_mul_")


def fused_on_cpu(graph: Graph) -> Graph:
    """Let each `Optimizer.step` take the calibrated time of a fused one for as many weights."""
    calibration = needed_calibration(graph, "fused_optimizer")
    step = np.where(graph.tasks["mark"] > 0, -1, fusible_steps(graph))
    length, gap = graph.tasks["duration_ns"].copy(), graph.tasks["gap_ns"].copy()
    inside = step >= 0
    if not inside.any():
        raise ChangeError("fused_optimizer: no optimizer of torch.optim runs in these steps")
    inner = np.flatnonzero(inside)
    _, first = np.unique(step[inner], return_index=True)
    _, from_end = np.unique(step[inner][::-1], return_index=True)
    rows, last = inner[first], inner[::-1][from_end]
    for row, end in zip(rows.tolist(), last.tolist(), strict=True):
        length[row] = round(_fused_ns(graph.trace, int(step[row]), calibration))
        gap[end], gap[row] = 0, gap[end]  # the gap after the step stays
    replaced = inside.copy()
    replaced[rows] = False
    return remove(graph.with_tasks(duration_ns=length, gap_ns=gap), replaced)


def fused_assumptions(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from."""
    calibration = needed_calibration(graph, "fused_optimizer")
    return (f"a fused step takes as long as alone for as many weights ({calibration})",)


def _fused_ns(trace: Trace, step: int, calibration: Calibration) -> float:
    cls = optimizer_class(str(trace.events.text("name")[step]))
    rows = np.flatnonzero(trace.events["parent"] == step).tolist()
    names = list(trace.events.text("name").take(rows))
    momentum = cls == "SGD" and any(name in _MOMENTUM for name in names)
    updates = (row for row, name in zip(rows, names, strict=True) if name in _UPDATES[cls])
    # The first input is what an operator writes: a tensor, or a list of them; none for a scalar counter.
    written = (each for row in updates for each in call_of(trace, row).inputs[:1])
    tensors = [tensor.elements for each in written for tensor in each if tensor.shape]
    if not tensors:
        raise ChangeError(f"fused_optimizer: {cls} is fused already, or its shapes were not recorded")
    share = 0.5 if momentum else 1.0  # the other half updates the momentum
    times = calibration.optimizers.get(f"{cls} with momentum" if momentum else cls)
    if not times:
        raise ChangeError(f"fused_optimizer: torch {calibration.machine.torch} has no fused {cls} for CPUs")
    return step_ns(times, len(tensors) * share, sum(tensors) * share)


def step_ns(rows: Sequence[Sequence[float]], tensors: float, elements: float) -> float:
    """Time of a fused step (or similar work) over tensors, ns.

    A cost per tensor, from the small ones, plus elements at the rate of large tensors with as many
    elements in total (or bytes), since data that fits a cache goes faster; `rows` of a calibration
    have tensors, elements in total, time in ns.
    """
    small = [(row[0], row[2]) for row in rows if row[1] / row[0] < _LARGE]
    large = sorted((row[1], row[2]) for row in rows if row[1] / row[0] >= _LARGE)
    (few, short), (many, long) = min(small), max(small)
    each = max(long - short, 0.0) / max(many - few, 1)
    once = max(short - few * each, 0.0)
    rates = [[at, max(time - once, 1.0) / at] for at, time in large]
    return once + tensors * each + elements * between(rates, min(elements, rates[-1][0]), 1)


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

    Source: PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py;
    torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, allgather and _reduce_scatter_base.
    """
    share, copied = 1 / network.workers, _copies_ns(graph, units)
    graph = _updated(graph, change, share)
    graph, channel = add_channel(graph, "shards")
    again = [unit for unit in units if not unit.stays]
    size = np.array([unit.bytes for unit in (*units, *again)], np.float64)
    a_copy = np.append(copied, copied[[not unit.stays for unit in units]])
    needs = [*(unit.used for unit in units), *(unit.begun for unit in again)]
    graph, number = add_blocking(
        graph,
        channel,
        needs,
        [f"all-gather {place}" for place in range(len(size))],
        network.all_gather_ns(size),
        size=size,
        copied_ns=(2 * share * a_copy, 2 * a_copy),
        in_front=True,
    )
    count = len(units)
    size, a_copy = size[:count], a_copy[:count]
    ready = number[[unit.ready[-1] for unit in units]]
    return add_blocking(
        graph,
        channel,
        ready,
        [f"reduce-scatter {place}" for place in range(count)],
        network.reduce_scatter_ns(size),
        size=size,
        copied_ns=(2 * a_copy, share * a_copy),
    )[0]


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
    # The first of these tasks in each outermost operator.
    optimizer = graph.trace.events.text("stage").mask("optimizer")
    operator = np.append(find_operators(graph.trace, optimizer).around, -1)[tasks["event"]]
    first = first_of(operator, rows, np.unique(operator[rows]))
    first = first[first >= 0]
    calibration = find_calibration(graph.trace.metadata)
    length[first] += round(calibration.sharding.get("operator", 0) if calibration else 0)
    return graph.with_tasks(duration_ns=length)
