"""`fused_optimizer` on a CPU: one pass over the weights, as calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from stepscope.arrays import Ids
from stepscope.calibration import Calibration
from stepscope.calibration.calibration import between
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove
from stepscope.trace.trace import Trace
from stepscope.whatif.parts.cpu_calibration import needed_calibration
from stepscope.whatif.parts.optimizer_steps import fusible_steps, optimizer_class

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
    """Let each `Optimizer.step` take the calibrated time of a fused one for as many weights.

    Raises:
        ChangeError: if there is no calibration, or the shapes of the weights are unknown.
    """
    calibration = needed_calibration(graph, "fused_optimizer")
    step = np.where(graph.tasks["mark"] > 0, -1, fusible_steps(graph))
    length, gap = graph.tasks["duration_ns"].copy(), graph.tasks["gap_ns"].copy()
    inside = step >= 0
    if not inside.any():
        raise ChangeError("fused_optimizer: no optimizer of torch.optim runs in these steps")
    _, first = np.unique(step[inside], return_index=True)
    rows = np.flatnonzero(inside)[first]
    last = np.flatnonzero(inside)[len(step[inside]) - 1 - _last(step[inside])]
    for row, end in zip(rows.tolist(), last.tolist(), strict=True):
        length[row] = round(_fused_ns(graph.trace, int(step[row]), calibration))
        gap[row] = gap[end]  # the gap after the step stays
    replaced = inside.copy()
    replaced[rows] = False
    return remove(graph.with_tasks(duration_ns=length, gap_ns=gap), replaced)


def fused_assumptions(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from."""
    calibration = needed_calibration(graph, "fused_optimizer")
    return (f"a fused step takes as long as alone for as many weights ({calibration})",)


def _last(values: Ids) -> Ids:
    _, index = np.unique(values[::-1], return_index=True)
    return index


def _fused_ns(trace: Trace, step: int, calibration: Calibration) -> float:
    cls = optimizer_class(str(trace.events.text("name")[step]))
    names, inputs = _called(trace, step)
    momentum = cls == "SGD" and any(name in _MOMENTUM for name in names)
    sizes = [size for name, size in zip(names, inputs, strict=True) if name in _UPDATES[cls]]
    tensors = [elements for size in sizes for elements in size]
    if not tensors:
        raise ChangeError(f"fused_optimizer: {cls} is fused already, or its shapes were not "
                          "recorded")  # fmt: skip
    share = 0.5 if momentum else 1.0  # the other half updates the momentum
    rows = calibration.optimizers.get(f"{cls} with momentum" if momentum else cls)
    if not rows:
        raise ChangeError(f"fused_optimizer: torch {calibration.machine.torch} has no fused {cls} "
                          "for CPUs")  # fmt: skip
    return step_ns(rows, len(tensors) * share, sum(tensors) * share)


def step_ns(rows: Sequence[Sequence[float]], tensors: float, elements: float) -> float:
    """Time of a fused step (or similar work) over tensors, ns.

    A cost per tensor, from the small ones, plus elements at the rate of large tensors with as many
    elements in total, since data that fits a cache goes faster.

    Args:
        rows: of a calibration: tensors, elements in total (or bytes), time in ns.
        tensors: number of tensors.
        elements: in total (or bytes).
    """
    small = [(row[0], row[2]) for row in rows if row[1] / row[0] < _LARGE]
    large = sorted((row[1], row[2]) for row in rows if row[1] / row[0] >= _LARGE)
    (few, short), (many, long) = min(small), max(small)
    each = max(long - short, 0.0) / max(many - few, 1)
    once = max(short - few * each, 0.0)
    rates = [[at, max(time - once, 1.0) / at] for at, time in large]
    rate = between(rates, min(elements, rates[-1][0]), 1)
    return once + tensors * each + elements * rate


def _called(trace: Trace, step: int) -> tuple[list[str], list[list[int]]]:
    """Names of the operators directly inside an optimizer's step, and the elements they write."""
    events = trace.events
    rows = np.flatnonzero(events["parent"] == step)
    wanted = {name for names in _UPDATES.values() for name in names}
    names = [str(events.text("name")[row]) for row in rows.tolist()]
    sizes = [
        _elements(trace.event_arguments(row)) if name in wanted else []
        for row, name in zip(rows.tolist(), names, strict=True)
    ]
    return names, sizes


def _elements(arguments: dict[str, Any]) -> list[int]:
    """Elements of each tensor that an in-place operator writes; none for a scalar counter."""
    dims = arguments.get("Input Dims") or [[]]
    target = dims[0]
    if target and isinstance(target[0], list):
        return [prod(size) for size in target if size]
    return [prod(target)] if target else []
