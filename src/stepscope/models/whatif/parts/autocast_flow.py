"""What autocast does to the operators of a step, one after the other.

A trace does not identify tensors, so precision is tracked by size: an input is taken for the last
result with as many elements. There are three exceptions. A value added to a result of the same size
is taken for the last such sum, or where there was none, for what the branch began with: the
residual stream of a transformer stays in FP32, that of a ResNet is in 16 bits. A value that no
operator made is a parameter or data, in FP32. And a vector that arithmetic takes is a parameter."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Operator, ScriptOperators
from stepscope.models.kernels.operators import products_of, tensors
from stepscope.trace.nesting import inherit
from stepscope.trace.sets import distinct_rows, mask_of
from stepscope.trace.trace import Trace

_FLOAT = "6"  # torch.float32 as an argument
_PRODUCTS = ("linear", "mm", "bmm", "matmul", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")
_ARITHMETIC = ("add", "sub", "mul", "div")  # what takes the wider type of its inputs, in place its own


@dataclass(frozen=True)
class Effect:
    """The effect of autocast on one operator."""

    half: bool = False  # whether it computes in 16 bits
    down: tuple[int, ...] = ()  # elements of each input that is cast to 16 bits
    up: tuple[int, ...] = ()  # elements of each input that is cast to FP32


@dataclass(frozen=True)
class Policy:
    """The operators of a device's autocast: those in 16 bits, and those kept in FP32."""

    lowered: frozenset[str]
    kept: frozenset[str]
    mixed: frozenset[str]  # composed of products in 16 bits and of sums with a state that stays in FP32


@cache
def policy_of(device: str) -> Policy:
    """Autocast's policy for a `cpu` or `cuda` device."""
    table = data_table("autocast.json")[device]
    return Policy(*(frozenset(table.get(name, ())) for name in ("lower", "single", "mixed")))


@dataclass
class _SizeFlow:
    """Precision of the values computed so far, by their number of elements: True for 16 bits."""

    policy: Policy
    made: dict[int, bool] = field(default_factory=dict)
    sums: dict[int, bool] = field(default_factory=dict)
    begun: dict[int, bool | None] = field(default_factory=dict)  # the first that a product took; None: data
    unread: Counter[int] = field(default_factory=Counter)  # results that no operator took so far
    last: bool = False
    product: bool = False  # whether the last operator was one

    def effect(self, call: Operator) -> Effect:
        wide = [prod(size) for size in call.floats if len(size) > 1]
        effect = self._effect(call, wide)
        # Two products in a row take the same value, and not the second what the first made.
        read = wide if not self.product or call.name not in self.policy.lowered else ()
        self.product = call.name in self.policy.lowered
        for size in read:
            self.unread[size] = max(self.unread[size] - 1, 0)
        self._remember(call, wide, effect.half and call.name not in self.policy.mixed)
        return effect

    def _effect(self, call: Operator, wide: list[int]) -> Effect:
        if call.name in self.policy.lowered:
            sizes = [prod(size) for size in call.floats]
            for size in sizes[:1]:
                first = self.begun.get(size)
                self.begun[size] = self.made.get(size) if first is None else first
            return Effect(True, tuple(n for n in sizes if not self.made.get(n, False)))
        if call.name in self.policy.mixed:
            return Effect(True)  # it casts inside
        if call.name in self.policy.kept or (call.name in ("to", "_to_copy") and _FLOAT in call.values):
            return Effect(False, (), tuple(n for n in wide if self.made.get(n, self.last)))
        inputs = [self.made.get(n, self.last) for n in wide]
        if _is_sum(call, wide):
            begun = bool(self.begun.get(wide[1], inputs[1]))
            inputs[1] = self.sums.get(wide[1], inputs[1] if self.unread[wide[1]] > 1 else begun)
        has_vector = call.name in _ARITHMETIC and any(len(size) == 1 for size in call.floats)
        return Effect(bool(wide) and all(inputs) and not has_vector)

    def _remember(self, call: Operator, wide: list[int], half: bool) -> None:
        size = _result(call, wide)
        if not size:
            return
        self.made[size] = self.last = half
        self.unread[size] += 1
        if _is_sum(call, wide):
            self.sums[size] = half


def forward_effects(calls: Sequence[Operator | None], policy: Policy) -> list[Effect]:
    """The effect on each operator of a thread in one step's forward, given in order of time."""
    flow = _SizeFlow(policy)
    return [Effect() if call is None else flow.effect(call) for call in calls]


def effects_of(graph: Graph, operators: ScriptOperators, policy: Policy) -> list[Effect]:
    """The effect of autocast on each operator; backward computes as its forward did."""
    events = graph.trace.events
    backward = events.text("stage").mask("backward")[operators.rows]
    effects = [Effect()] * len(operators.rows)
    _, flow = distinct_rows(events["step"][operators.rows], events["track"][operators.rows])
    for number in range(int(flow.max(initial=-1)) + 1):
        rows = np.flatnonzero((flow == number) & ~backward)
        found = forward_effects([operators.calls[row] for row in rows.tolist()], policy)
        for row, effect in zip(rows.tolist(), found, strict=True):
            effects[row] = effect
    ahead, first = forward_rows(graph.trace, operators, backward)
    for row in np.flatnonzero(ahead >= 0).tolist():
        forward = effects[ahead[row]]
        # The gradient of a cast is a cast the other way.
        effects[row] = Effect(forward.half, *((forward.up, forward.down) if first[row] else ((), ())))
    return effects


def forward_rows(trace: Trace, operators: ScriptOperators, backward: Mask) -> tuple[Ids, Mask]:
    """The operator that each backward operator differentiates, or -1; and whether it is the first."""
    ahead = np.where(backward, forward_of(trace, operators), -1)
    _, begin = np.unique(ahead, return_index=True)
    return ahead, mask_of(begin, len(ahead)) & (ahead >= 0)


def forward_of(trace: Trace, operators: ScriptOperators) -> Ids:
    """The index of the forward operator that each backward operator differentiates, or -1."""
    ahead = inherit(trace.events["parent"], trace.events["forward_event"])[operators.rows]
    return np.where(ahead >= 0, np.append(operators.around, -1)[ahead], -1)


@cache
def data_table(name: str) -> dict[str, Any]:
    """A table of `whatif/data`."""
    return json.loads(files("stepscope.models.whatif").joinpath("data", name).read_text("utf-8"))


def _is_sum(call: Operator, wide: list[int]) -> bool:
    return call.name in ("add", "add_") and len(wide) == 2 and wide[0] == wide[1]


def _result(call: Operator, wide: list[int]) -> int:
    """Number of elements of the operator's result; for others, those of its largest input."""
    sizes = tensors(call)
    if call.name == "embedding" and len(sizes) > 1:
        return prod(sizes[1]) * sizes[0][-1]
    if call.name in _PRODUCTS and (products := products_of(call)):
        return products[0].batch * products[0].rows * products[0].columns
    return max(wide, default=0)
