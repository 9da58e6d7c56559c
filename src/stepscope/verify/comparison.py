"""The result of a verification: predicted against measured, with the spread of the rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.whatif import Prediction


@dataclass(frozen=True)
class MeasuredRuns:
    """A step's length over several runs.

    Attributes:
        rounds_ms: the step of each run, ms: the mean of the middle half of its steps.
        cpu_ms: the CPU time of a step in each run, all threads of the (first) process, ms.
        parts_ms: time of a step in data loading and in optimizers, the median of the runs, ms.
    """

    rounds_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    parts_ms: Mapping[str, float]

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> MeasuredRuns:
        """From the facts of each run."""
        wall, cpu = (
            tuple(middle_mean(run[name]) / 1e6 for run in runs) for name in ("steps_ns", "cpu_ns")
        )
        parts = {
            name: statistics.median(middle_mean(run["parts_ns"][name]) / 1e6 for run in runs)
            for name in ("data_loading", "optimizer")
        }
        return cls(wall, cpu, parts)

    @property
    def step_ms(self) -> float:
        """The median of the runs."""
        return statistics.median(self.rounds_ms)

    @property
    def spread(self) -> float:
        """The longest minus the shortest run, over the median."""
        return (max(self.rounds_ms) - min(self.rounds_ms)) / self.step_ms

    def to_json(self) -> dict[str, Any]:
        """Median, spread and runs."""
        return {
            "step_ms": self.step_ms,
            "spread": self.spread,
            "rounds_ms": list(self.rounds_ms),
            "cpu_ms": list(self.cpu_ms),
            "parts_ms": dict(self.parts_ms),
        }


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest quarter.

    A median would do for similar steps; but with workers that make batches at the same time, short
    steps follow long ones, and it would be one of them.
    """
    drop = len(values) // 4
    return statistics.fmean(sorted(values)[drop : len(values) - drop])


# Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def confidence_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of a mean, by Student's t; infinite for a single value.

    Example:
        >>> confidence_interval([1.0, 1.0, 1.0])
        (1.0, 1.0)
    """
    if len(values) < 2:
        return -math.inf, math.inf
    degrees = len(values) - 1
    quantile = _T[degrees - 1] if degrees <= len(_T) else 1.96 + 2.5 / degrees
    middle = statistics.fmean(values)
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


@dataclass(frozen=True)
class TrialComparison:
    """Predicted against measured.

    Attributes:
        script: as it was called.
        changes: as requested.
        before, after: steps measured without and with the changes.
        recorded_ms: the step of the recording on which the prediction is based.
        prediction: from that recording, corrected for its overhead; None if there is none.
        reason: why there is no prediction.
        applied: what each change was applied to, by name.
        machine: properties of this machine.
    """

    script: str
    changes: tuple[str, ...]
    before: MeasuredRuns
    after: MeasuredRuns
    recorded_ms: float
    prediction: Prediction | None
    reason: str | None
    applied: Mapping[str, Mapping[str, Any]]
    machine: Mapping[str, Any]

    @property
    def measured_speedup(self) -> float:
        """The median step without the change over the one with it."""
        return self.before.step_ms / self.after.step_ms

    @property
    def measured_range(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the measured speedup; None after a single round."""
        pairs = zip(self.before.rounds_ms, self.after.rounds_ms, strict=True)
        low, high = confidence_interval([math.log(before / after) for before, after in pairs])
        if math.isinf(high):
            return None
        measured = self.measured_speedup
        return min(math.exp(low), measured), max(math.exp(high), measured)

    @property
    def is_significant(self) -> bool:
        """Whether the rounds with the change differ from those without by more than noise."""
        found = self.measured_range
        return found is not None and not found[0] <= 1 <= found[1]

    @property
    def verdict(self) -> str:
        """What the rounds show about the prediction.

        `confirmed` or `contradicted` if the change is faster or slower beyond the noise and a
        prediction says so or says the opposite; `measured` without a certain prediction;
        `cannot tell` if the difference is within the noise.
        """
        if not self.is_significant:
            return "cannot tell"
        if self.prediction is None or not self.prediction.is_certain:
            return "measured"
        return "confirmed" if self.right_sign else "contradicted"

    @property
    def error(self) -> float | None:
        """Predicted over measured step, minus 1."""
        if self.prediction is None:
            return None
        return self.prediction.predicted_step_ms / self.after.step_ms - 1

    @property
    def right_sign(self) -> bool | None:
        """Whether prediction and measurement are both faster or both slower; None if unknown."""
        if self.prediction is None or not self.is_significant:
            return None
        return (self.prediction.speedup > 1) == (self.measured_speedup > 1)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists for `json`."""
        prediction = None if self.prediction is None else self.prediction.to_json()
        return {
            "script": self.script,
            "changes": list(self.changes),
            "predicted_step_ms": prediction and prediction["predicted_step_ms"],
            "range": prediction and prediction["range"],
            "predicted_speedup": prediction and prediction["speedup"],
            "no_prediction": self.reason,
            "measured_speedup": self.measured_speedup,
            "error": self.error,
            "right_sign": self.right_sign,
            "measured_speedup_range": self.measured_range,
            "verdict": self.verdict,
            "recorded_step_ms": self.recorded_ms,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "applied": {name: dict(facts) for name, facts in self.applied.items()},
            "machine": dict(self.machine),
            "prediction": prediction,
        }
