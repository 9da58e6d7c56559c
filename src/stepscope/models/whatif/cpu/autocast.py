"""`amp` on a CPU: autocast to bfloat16, by a calibration.

A trace does not identify tensors, so precision is tracked by size: an input is taken for the last
result with as many elements. There are two exceptions. A value added to a result of the same size
is taken for the last such sum: the residual stream of a transformer stays in FP32, that of a
ResNet is in 16 bits. And a value that no operator made is a parameter or data, in FP32."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError
from stepscope.facts.roofline.formulas import OperatorCall, output_places
from stepscope.graph import Graph
from stepscope.models.calibration import Calibration, find_operators
from stepscope.models.calibration.calibration import Operator, ScriptOperators, between
from stepscope.models.whatif.cpu.calibrated import needed_calibration
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import FORWARD_STAGES

_STAGES = (*FORWARD_STAGES, "backward")
_LEAST_SHARE = 0.5  # of the time in 16 bits that is calibrated; of less, most would be a guess


def amp_on_cpu(graph: Graph) -> Graph:
    """Scale operators by their calibrated ratio of 16-bit to 32-bit time, and add casts.

    This may well be slower: a CPU without 16-bit instructions loses.
    """
    calibration = needed_calibration(graph, "amp")
    autocast = _autocast(graph, calibration)
    if not autocast.half.any():
        raise ChangeError(
            "amp: these steps have no autocast operators with recorded shapes; "
            "record them with `stepscope run`"
        )
    if autocast.known_share(graph) < _LEAST_SHARE:
        raise ChangeError(
            "amp: the calibration lacks most of these operators; run `stepscope "
            "calibrate FILE` on the machine that recorded the trace"
        )
    casts = np.array([_casts_ns(calibration, effect) for effect in autocast.effects])
    ratio = np.where(autocast.half & np.isfinite(autocast.ratio), autocast.ratio, 1.0)
    return _retimed(graph, autocast.operators, ratio, casts)


def autocast_assumptions(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from, and the share of the work that they cover."""
    calibration = needed_calibration(graph, "amp")
    share = _autocast(graph, calibration).known_share(graph)
    return (
        f"operators gain in the step what they gained alone ({calibration})",
        f"operators with {share:.0%} of the time spent in 16 bits were measured; the others keep their time",
        "values in 16 bits are tracked by their sizes",
    )


@dataclass(frozen=True, eq=False)
class _Autocast:
    """What autocast would do to the operators of a graph's steps.

    Attributes:
        ratio: time in 16 bits over time in 32; NaN if not measured.
    """

    operators: ScriptOperators
    effects: list[Effect]
    ratio: Floats

    @property
    def half(self) -> Mask:
        """Operators that would compute in 16 bits."""
        return np.array([effect.half for effect in self.effects], np.bool_)

    def known_share(self, graph: Graph) -> float:
        """The share of the time in 16 bits that the calibration covers."""
        length = graph.trace.events["duration_ns"][self.operators.rows]
        total = float(length[self.half].sum())
        known = float(length[self.half & np.isfinite(self.ratio)].sum())
        return known / total if total else 1.0


def _autocast(graph: Graph, calibration: Calibration) -> _Autocast:
    events = graph.trace.events
    chosen = events.text("stage").mask(*_STAGES) & np.isin(events["step"], graph.window.steps)
    operators = find_operators(graph.trace, chosen)
    ratio = np.array([_ratio(calibration, call) for call in operators.calls], np.float64)
    return _Autocast(operators, _effects(graph, operators), ratio)


def _ratio(calibration: Calibration, call: Operator | None) -> float:
    if call is None or not call.floats:
        return float("nan")
    single, half = calibration.operators.get(call.signature, (None, None))
    return half / single if single and half else float("nan")


def _effects(graph: Graph, operators: ScriptOperators) -> list[Effect]:
    """The effect of autocast on each operator; backward computes as its forward did."""
    events = graph.trace.events
    step = events["step"][operators.rows]
    backward = events.text("stage").mask("backward")[operators.rows]
    effects = [Effect()] * len(operators.rows)
    for number in graph.window.steps:
        rows = np.flatnonzero((step == number) & ~backward)
        found = forward_effects([operators.calls[row] for row in rows.tolist()])
        for row, effect in zip(rows.tolist(), found, strict=True):
            effects[row] = effect
    # The forward operator that each backward operator differentiates, or -1.
    ahead = inherit(events["parent"], events["forward_event"])[operators.rows]
    ahead = np.where(backward & (ahead >= 0), np.append(operators.around, -1)[ahead], -1)
    seen: set[int] = set()
    for row in np.flatnonzero(ahead >= 0).tolist():
        source = int(ahead[row])
        first, forward = source not in seen, effects[source]
        seen.add(source)
        # The gradient of a cast is a cast the other way.
        effects[row] = Effect(forward.half, *((forward.up, forward.down) if first else ((), ())))
    return effects


def _casts_ns(calibration: Calibration, effect: Effect) -> float:
    sides = ((1, effect.down), (2, effect.up))
    return sum(between(calibration.casts, size, column) for column, sizes in sides for size in sizes)


def _retimed(graph: Graph, operators: ScriptOperators, ratio: Floats, added_ns: Floats) -> Graph:
    """Scale the tasks of each operator by its ratio, and add its casts to the first of them."""
    place = np.append(operators.around, -1)[graph.tasks["event"]]
    length = graph.tasks["duration_ns"] * np.append(ratio, 1.0)[place]
    known = np.flatnonzero(place >= 0)
    _, first = np.unique(place[known], return_index=True)
    rows = known[first]
    length[rows] += added_ns[place[rows]]
    return graph.with_tasks(duration_ns=np.rint(length))


Size = tuple[int, ...]
_FLOAT = "6"  # torch.float32 as an argument
_PRODUCTS = ("linear", "mm", "bmm", "matmul", "addmm", "baddbmm")


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
class _SizeFlow:
    """Precision of the values computed so far, by their number of elements: True for 16 bits."""

    made: dict[int, bool] = field(default_factory=dict)
    sums: dict[int, bool] = field(default_factory=dict)
    last: bool = False

    def effect(self, call: Operator) -> Effect:
        wide = [prod(size) for size in call.floats if len(size) > 1]
        if call.name in lowered():
            sizes = [prod(size) for size in call.floats]
            effect = Effect(True, tuple(n for n in sizes if not self.made.get(n, False)))
        elif call.name in kept() or (call.name in ("to", "_to_copy") and _FLOAT in call.values):
            effect = Effect(False, (), tuple(n for n in wide if self.made.get(n, self.last)))
        else:
            inputs = [self.made.get(n, self.last) for n in wide]
            if _is_sum(call, wide):
                inputs[1] = self.sums.get(wide[1], inputs[1])
            effect = Effect(bool(wide) and all(inputs))
        self._remember(call, wide, effect.half)
        return effect

    def _remember(self, call: Operator, wide: list[int], half: bool) -> None:
        size = _result(call, wide)
        if not size:
            return
        self.made[size] = self.last = half
        if _is_sum(call, wide):
            self.sums[size] = half


def forward_effects(calls: list[Operator | None]) -> list[Effect]:
    """The effect on each operator of one step's forward, given in order of time."""
    flow = _SizeFlow()
    return [Effect() if call is None else flow.effect(call) for call in calls]


@cache
def lowered() -> frozenset[str]:
    """Operators that autocast runs in 16 bits."""
    return frozenset(data_table("autocast_cpu.json")["lower"])


@cache
def kept() -> frozenset[str]:
    """Operators that autocast runs in FP32."""
    return frozenset(data_table("autocast_cpu.json")["single"])


@cache
def data_table(name: str) -> dict[str, Any]:
    """A table of `whatif/data`."""
    text = files("stepscope.models.whatif").joinpath("data", name).read_text("utf-8")
    return json.loads(text)


def _is_sum(call: Operator, wide: list[int]) -> bool:
    return call.name in ("add", "add_") and len(wide) == 2 and wide[0] == wide[1]


def _result(call: Operator, wide: list[int]) -> int:
    """Number of elements of the operator's result; for others, those of its largest input."""
    tensors: list[Size] = [tuple(s) for s in call.dims if s and isinstance(s[0], int)]
    left = 1 if call.name in ("addmm", "baddbmm") else 0
    if call.name in _PRODUCTS and len(tensors) > left + 1:
        return prod(tensors[left][:-1]) * tensors[left + 1][0 if call.name == "linear" else -1]
    if call.name == "embedding" and len(tensors) > 1:
        return prod(tensors[1]) * tensors[0][-1]
    if call.name in ("conv1d", "conv2d", "conv3d") and len(tensors) > 1:
        data, weight = tensors[:2]
        places = output_places(data, weight, OperatorCall((), call.values))
        return prod(data) if places is None else data[0] * weight[0] * places
    return max(wide, default=0)
