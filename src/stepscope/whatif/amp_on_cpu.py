"""`amp` where the operators are the work: autocast to bfloat16 on a CPU, by a calibration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.calibration import Calibration, Operators, find_operators
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif.autocast import Effect, forward_effects, forward_of
from stepscope.whatif.calibrated import needed_calibration

Times = NDArray[np.float64]
_LEAST_SHARE = 0.5
_STAGES = ("forward", "loss", "backward")


def amp_on_cpu(graph: Graph) -> Graph:
    """Operators take what they took alone in 16 bits, over what they took alone in 32; casts added.

    Whether that is faster is for the calibration to say: without instructions for 16 bits it is
    not.

    Raises:
        ChangeError: if there is no calibration, or nothing would run in 16 bits.
    """
    calibration = needed_calibration(graph, "amp")
    operators = _operators(graph)
    effects = _effects(graph, operators)
    if not any(effect.half for effect in effects):
        raise ChangeError("amp: no operator that autocast knows is in these steps with its shapes; "
                          "record them with `stepscope run`")  # fmt: skip
    if _measured_share(graph, calibration) < _LEAST_SHARE:
        raise ChangeError("amp: the calibration knows too few of these operators; run `stepscope "
                          "calibrate FILE` on the machine of the trace")  # fmt: skip
    factor = np.array([_factor(calibration, operators, n, one) for n, one in enumerate(effects)])
    casts = np.array([_casts_ns(calibration, effect) for effect in effects])
    return _retimed(graph, operators, factor, casts)


def assumed_of_autocast(graph: Graph) -> tuple[str, ...]:
    """What has to hold: where the times come from, and how much of the work they cover."""
    calibration = needed_calibration(graph, "amp")
    share = _measured_share(graph, calibration)
    return (
        f"operators gain beside others what they gained alone ({calibration})",
        f"operators with {share:.0%} of the time that would be spent in 16 bits were measured; "
        "the others keep their time",
        "which values are in 16 bits is followed by their sizes",
    )


def _measured_share(graph: Graph, calibration: Calibration) -> float:
    operators = _operators(graph)
    length = graph.trace.events["duration_ns"][operators.rows]
    half = np.array([effect.half for effect in _effects(graph, operators)])
    known = np.array([_half_ratio(calibration, operators, n) is not None for n in range(len(half))])
    total = float(length[half].sum())
    return float(length[half & known].sum()) / total if total else 1.0


def _operators(graph: Graph) -> Operators:
    events = graph.trace.events
    chosen = events.text("stage").mask(*_STAGES) & np.isin(events["step"], graph.window.steps)
    return find_operators(graph.trace, chosen)


def _effects(graph: Graph, operators: Operators) -> list[Effect]:
    """What autocast does to each operator; backward computes as its forward did."""
    events = graph.trace.events
    step = events["step"][operators.rows]
    backward = events.text("stage").mask("backward")[operators.rows]
    effects = [Effect()] * len(operators.rows)
    for one in graph.window.steps:
        rows = np.flatnonzero((step == one) & ~backward)
        found = forward_effects([operators.calls[row] for row in rows.tolist()])
        for row, effect in zip(rows.tolist(), found, strict=True):
            effects[row] = effect
    ahead = np.where(backward, forward_of(graph.trace, operators), -1)
    met: set[int] = set()
    for row in np.flatnonzero(ahead >= 0).tolist():
        source = int(ahead[row])
        first, forward = source not in met, effects[source]
        met.add(source)
        # The gradient of a cast is a cast the other way.
        effects[row] = Effect(forward.half, *((forward.up, forward.down) if first else ((), ())))
    return effects


def _half_ratio(calibration: Calibration, operators: Operators, number: int) -> float | None:
    call = operators.calls[number]
    if call is None:
        return None
    single, half = calibration.operators.get(call.signature, (None, None))
    return half / single if single and half else None


def _factor(calibration: Calibration, operators: Operators, number: int, effect: Effect) -> float:
    ratio = _half_ratio(calibration, operators, number) if effect.half else None
    return 1.0 if ratio is None else ratio


def _casts_ns(calibration: Calibration, effect: Effect) -> float:
    down = sum(calibration.cast_ns(elements, down=True) for elements in effect.down)
    return down + sum(calibration.cast_ns(elements, down=False) for elements in effect.up)


def _retimed(graph: Graph, operators: Operators, factor: Times, added_ns: Times) -> Graph:
    """Tasks of each operator by its factor, with its addition to the first of them."""
    place = np.append(operators.around, -1)[graph.tasks["event"]]
    factors = np.append(factor, 1.0)[place]
    length = graph.tasks["duration_ns"] * factors
    known = np.flatnonzero(place >= 0)
    _, first = np.unique(place[known], return_index=True)
    rows = known[first]
    length[rows] += added_ns[place[rows]]
    return graph.with_tasks(duration_ns=np.rint(length))
