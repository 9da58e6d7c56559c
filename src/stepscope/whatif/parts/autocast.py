"""Which CPU operators would run in 16 bits under autocast, and which casts that adds.

A trace does not identify tensors, so precision is tracked by size: an input is taken for the last
result with as many elements. There are two exceptions. A value added to a result of the same size
is taken for the last such sum: the residual stream of a transformer stays in FP32, that of a
ResNet is in 16 bits. And a value that no operator made is a parameter or data, in FP32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod

import numpy as np

from stepscope.arrays import Ids
from stepscope.calibration.script_operators import Operator, ScriptOperators
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

Size = tuple[int, ...]
_FLOAT = "6"  # torch.float32 as an argument


@dataclass(frozen=True)
class Effect:
    """The effect of autocast on one operator.

    Attributes:
        half: whether it computes in 16 bits.
        down: elements of each input that is cast to 16 bits.
        up: elements of each input that is cast to FP32.
    """

    half: bool = False
    down: tuple[int, ...] = ()
    up: tuple[int, ...] = ()


@dataclass
class _Flow:
    """Precision of the values computed so far, by their number of elements: True for 16 bits."""

    made: dict[int, bool] = field(default_factory=dict)
    sums: dict[int, bool] = field(default_factory=dict)
    last: bool = False

    def effect(self, call: Operator) -> Effect:
        """The effect on the next operator of forward."""
        wide = [prod(size) for size in call.floats if len(size) > 1]
        if call.name in lowered():
            sizes = [prod(size) for size in call.floats]
            effect = Effect(True, tuple(n for n in sizes if not self.made.get(n, False)))
        elif call.name in kept() or (call.name in ("to", "_to_copy") and _FLOAT in call.values):
            effect = Effect(False, (), tuple(n for n in wide if self.made.get(n, self.last)))
        else:
            effect = Effect(bool(wide) and all(self._inputs(call, wide)))
        self._remember(call, wide, effect.half)
        return effect

    def _inputs(self, call: Operator, wide: list[int]) -> Iterator[bool]:
        if _is_sum(call, wide):
            yield self.made.get(wide[0], self.last)
            yield self.sums.get(wide[0], self.made.get(wide[0], self.last))
            return
        yield from (self.made.get(n, self.last) for n in wide)

    def _remember(self, call: Operator, wide: list[int], half: bool) -> None:
        size = _result(call, wide)
        if not size:
            return
        self.made[size] = self.last = half
        if _is_sum(call, wide):
            self.sums[size] = half


def forward_effects(calls: list[Operator | None]) -> list[Effect]:
    """The effect on each operator of one step's forward, given in order of time."""
    flow = _Flow()
    return [Effect() if call is None else flow.effect(call) for call in calls]


def forward_of(trace: Trace, operators: ScriptOperators) -> Ids:
    """The index of the forward operator that each backward operator differentiates, or -1.

    Args:
        trace: the trace.
        operators: its operators of forward and backward.
    """
    ahead = inherit(trace.events["parent"], trace.events["forward_event"])[operators.rows]
    return np.where(ahead >= 0, np.append(operators.around, -1)[ahead], -1)


@cache
def lowered() -> frozenset[str]:
    """Operators that autocast runs in 16 bits."""
    return frozenset(_table()["lower"])


@cache
def kept() -> frozenset[str]:
    """Operators that autocast runs in FP32."""
    return frozenset(_table()["single"])


def _table() -> dict[str, list[str]]:
    text = files("stepscope.whatif").joinpath("data/autocast_cpu.json").read_text("utf-8")
    table: dict[str, list[str]] = json.loads(text)
    return table


def _is_sum(call: Operator, wide: list[int]) -> bool:
    return call.name in ("add", "add_") and len(wide) == 2 and wide[0] == wide[1]


def _result(call: Operator, wide: list[int]) -> int:
    """Number of elements of the operator's result; for others, those of its largest input."""
    tensors: list[Size] = [tuple(s) for s in call.dims if s and isinstance(s[0], int)]
    if call.name == "linear" and len(tensors) > 1:
        return prod(tensors[0][:-1]) * tensors[1][0]
    if call.name in ("mm", "bmm", "matmul") and len(tensors) > 1:
        return prod(tensors[0][:-1]) * tensors[1][-1]
    if call.name in ("addmm", "baddbmm") and len(tensors) > 2:
        return prod(tensors[1][:-1]) * tensors[2][-1]
    if call.name == "embedding" and len(tensors) > 1:
        return prod(tensors[1]) * tensors[0][-1]
    if call.name in ("conv1d", "conv2d", "conv3d") and len(tensors) > 1:
        return _convolved(call, tensors[0], tensors[1])
    return max(wide, default=0)


def _convolved(call: Operator, data: Size, weight: Size) -> int:
    """Source: PyTorch, `torch.nn.Conv2d`, "Shape"."""
    lists = [_numbers(text, len(data) - 2) for text in call.values[3:6]]
    if len(lists) < 3 or not all(lists):
        return prod(data)
    positions: Iterator[int] = (
        (n + 2 * pad - space * (k - 1) - 1) // stride + 1
        for n, k, stride, pad, space in zip(data[2:], weight[2:], *lists, strict=True)
    )
    return data[0] * weight[0] * prod(positions)


def _numbers(text: str, count: int) -> list[int]:
    try:
        values = json.loads(text)
    except ValueError:
        return []
    numbers = [int(value) for value in (values if isinstance(values, list) else [values])]
    return numbers * count if len(numbers) == 1 else numbers
