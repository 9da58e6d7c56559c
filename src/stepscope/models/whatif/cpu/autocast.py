"""`amp` on a CPU: autocast to bfloat16, by a calibration."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import (
    Calibration,
    Operator,
    ScriptOperators,
    between,
    find_operators,
)
from stepscope.models.whatif.cpu.calibrated import needed_calibration
from stepscope.models.whatif.parts.autocast_flow import Effect, effects_of, policy_of
from stepscope.models.whatif.parts.layers import first_of
from stepscope.trace.schema import FORWARD_STAGES

_STAGES = (*FORWARD_STAGES, "backward")
_LEAST_SHARE = 0.5  # of the time in 16 bits that is calibrated; of less, most would be a guess
_LOSS, _GAIN = 2.0, 0.5  # of an operator that was not measured: 16 bits are half of the bytes
_NAMED = 3  # operators in a sentence


def amp_on_cpu(graph: Graph, estimate: str = "typical") -> Graph:
    """Scale operators by their calibrated ratio of 16-bit to 32-bit time, and add casts.

    This may well be slower: a CPU without 16-bit instructions loses. An operator that could not be
    measured keeps its time; in the low and high estimate it loses or gains most of all.
    """
    calibration = needed_calibration(graph, "amp", "casts")
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
    ratio = np.where(autocast.half, autocast.estimated(estimate), 1.0)
    return _retimed(graph, autocast.operators, ratio, casts)


def autocast_assumptions(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from, and the share of the work that they cover."""
    calibration = needed_calibration(graph, "amp", "casts")
    autocast = _autocast(graph, calibration)
    share, others = autocast.known_share(graph), autocast.unmeasured(graph)
    which = f" ({', '.join(others)})" if others else ""
    return (
        f"operators gain in the step what they gained alone ({calibration})",
        f"operators with {share:.0%} of the time spent in 16 bits were measured; "
        f"the others{which} keep their time",
        "values in 16 bits are tracked by their sizes",
    )


@dataclass(frozen=True, eq=False)
class _CpuAutocast:
    """What autocast would do to the operators of a graph's steps."""

    operators: ScriptOperators
    effects: list[Effect]
    ratio: Floats  # time in 16 bits over time in 32; NaN if not measured

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

    def estimated(self, estimate: str) -> Floats:
        """The ratio of each operator; of those that were not measured, by what others have."""
        measured = self.ratio[self.half & np.isfinite(self.ratio)]
        most, least = max(_LOSS, *measured), min(_GAIN, *measured)
        return np.where(np.isfinite(self.ratio), self.ratio, {"low": most, "high": least}.get(estimate, 1.0))

    def unmeasured(self, graph: Graph) -> list[str]:
        """The names of operators that were not measured, those with the longest time first."""
        names, length = graph.trace.events.text("name"), graph.trace.events["duration_ns"]
        rows = self.operators.rows[self.half & ~np.isfinite(self.ratio)]
        spent = np.bincount(names.codes[rows], length[rows], len(names.values))
        longest = np.argsort(-spent, kind="stable")[:_NAMED]
        return [names.values[name] for name in longest.tolist() if spent[name]]


def _autocast(graph: Graph, calibration: Calibration) -> _CpuAutocast:
    events = graph.trace.events
    chosen = events.text("stage").mask(*_STAGES) & np.isin(events["step"], graph.window.steps)
    operators = find_operators(graph.trace, chosen)
    ratio = np.array([_ratio(calibration, call) for call in operators.calls], np.float64)
    return _CpuAutocast(operators, effects_of(graph, operators, policy_of("cpu")), ratio)


def _ratio(calibration: Calibration, call: Operator | None) -> float:
    if call is None or not call.floats:
        return float("nan")
    single, half = calibration.operators.get(call.signature, (None, None))
    return half / single if single and half else float("nan")


def _casts_ns(calibration: Calibration, effect: Effect) -> float:
    sides = ((1, effect.down), (2, effect.up))
    return sum(between(calibration.casts, size, column) for column, sizes in sides for size in sizes)


def _retimed(graph: Graph, operators: ScriptOperators, ratio: Floats, added_ns: Floats) -> Graph:
    """Scale the tasks of each operator by its ratio, and add its casts to the first of them."""
    place = np.append(operators.around, -1)[graph.tasks["event"]]
    length = graph.tasks["duration_ns"] * np.append(ratio, 1.0)[place]
    first = first_of(place, np.flatnonzero(place >= 0), np.arange(len(ratio)))
    length[first[first >= 0]] += added_ns[first >= 0]
    return graph.with_tasks(duration_ns=np.rint(length))
