"""The answer: measured, replayed and predicted step, how sure, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from stepscope.graph import (
    Graph,
    Simulation,
    breakdown,
    critical_ms,
    simulate,
    without_residue,
)
from stepscope.graph.path import Breakdown
from stepscope.whatif.change import Request

_WORTH_TELLING = 0.001
_ALWAYS = "work that stays takes as long as it did, also beside other work than before"
_ALIKE = "other ranks change alike"
_TOGETHER = (
    "times are the mean of all ranks; a collective begins when the last of them arrives, and then "
    "takes as long as it did"
)


@dataclass(frozen=True)
class Prediction:
    """What some changes would make of the step; times are means a step, ms.

    Attributes:
        measured_step_ms: until the next step begins; of the last, until its device work ends.
        replayed_step_ms: the same steps simulated without a change.
        replay_error: replayed over measured, less 1.
        predicted_step_ms: simulated with the changes, in the order given.
        speedup: replayed over predicted.
        range: predicted if the changes gain most and least, each widened by an error, ms:
            the largest of the replay's, the step's unexplained part, and the published one.
        changes: as asked for.
        assumptions: what has to hold.
        breakdown: before and after: only CPU, only device, both, neither, ms.
        critical_path: before and after, by stage and by module, ms.
    """

    measured_step_ms: float
    replayed_step_ms: float
    replay_error: float
    predicted_step_ms: float
    speedup: float
    range: tuple[float, float]
    changes: tuple[str, ...]
    assumptions: tuple[str, ...]
    breakdown: dict[str, Breakdown]
    critical_path: dict[str, dict[str, dict[str, float]]]

    @property
    def is_certain(self) -> bool:
        """Whether all of the range is faster than the replay, or all of it slower."""
        low, high = self.range
        return not low <= self.replayed_step_ms <= high

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Baseline:
    """The steps as they were measured: what every prediction for them is compared with.

    Attributes:
        graph: without a change.
    """

    graph: Graph

    @cached_property
    def simulation(self) -> Simulation:
        """The unchanged replay."""
        return simulate(self.graph)

    @cached_property
    def measured_ms(self) -> float:
        """Mean of the measured steps."""
        return float(self.graph.window.measured_ns.mean()) / 1e6

    @cached_property
    def unexplained(self) -> float:
        """Part of the measured step that no known dependency explains."""
        return 1 - _step_ms(simulate(without_residue(self.graph))) / self.measured_ms

    @cached_property
    def breakdown(self) -> Breakdown:
        """Which side was busy."""
        return breakdown(self.simulation)

    @cached_property
    def critical_ms(self) -> dict[str, dict[str, float]]:
        """What set the length."""
        return critical_ms(self.simulation)

    def predict(self, requests: Sequence[Request]) -> tuple[Prediction, Simulation]:
        """What the changes, applied in this order, would make of the steps.

        Raises:
            ChangeError: if one does not apply, with the reason.
        """
        after = simulate(_changed(self.graph, requests))
        replayed, predicted = _step_ms(self.simulation), _step_ms(after)
        error = replayed / self.measured_ms - 1
        prediction = Prediction(
            measured_step_ms=self.measured_ms,
            replayed_step_ms=replayed,
            replay_error=error,
            predicted_step_ms=predicted,
            speedup=replayed / predicted if predicted else float("inf"),
            range=_range(self.graph, requests, predicted, max(abs(error), abs(self.unexplained))),
            changes=tuple(map(str, requests)),
            assumptions=_assumptions(self.graph, requests, self.unexplained),
            breakdown={"before": self.breakdown, "after": breakdown(after)},
            critical_path={"before": self.critical_ms, "after": critical_ms(after)},
        )
        return prediction, after


def predict(graph: Graph, requests: Sequence[Request]) -> Prediction:
    """What the changes would make of the graph's steps.

    Args:
        graph: of the steps as they were measured.
        requests: the changes, applied in this order.

    Raises:
        ChangeError: if one does not apply, with the reason.

    Example:
        >>> predict(graph, [parse_request("bandwidth:factor=2", CHANGES)])  # doctest: +SKIP
    """
    return Baseline(graph).predict(requests)[0]


def _assumptions(graph: Graph, requests: Sequence[Request], unexplained: float) -> tuple[str, ...]:
    kept = f"{unexplained:.1%} of the step are delays without a known cause; they stay as they are"
    known = (kept,) if abs(unexplained) >= _WORTH_TELLING else ()
    always = (_ALWAYS, _TOGETHER if graph.window.rank < 0 else _ALIKE)
    return (*always, *known, *(text for one in requests for text in one.change.assumed(graph)))


def _changed(graph: Graph, requests: Sequence[Request], side: str = "") -> Graph:
    for one in requests:
        graph = one.apply(graph, getattr(one.change, side) if side else None)
    return graph


def _range(
    graph: Graph, requests: Sequence[Request], predicted: float, error: float
) -> tuple[float, float]:
    """Least and greatest of the predictions, widened by the largest of three errors.

    They are the replay's, the part of the step that no dependency explains, and what was published
    of such predictions.
    """
    bounded = [one for one in requests if one.change.low or one.change.high]
    sides = [_step_ms(simulate(_changed(graph, requests, side))) for side in ("low", "high")] \
        if bounded else []  # fmt: skip
    steps = [predicted, *sides]
    error = max(error, *(one.change.error for one in requests), 0.0)
    return min(steps) * (1 - error), max(steps) * (1 + error)


def _step_ms(simulation: Simulation) -> float:
    return float(simulation.step_ns.mean()) / 1e6
