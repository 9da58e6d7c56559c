"""What came of a verification: predicted beside measured, with the spread of the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.whatif import Prediction


@dataclass(frozen=True)
class Measured:
    """A step's length over several runs.

    Attributes:
        rounds_ms: the step of each run, ms: the mean of the middle half of its steps.
        cpu_ms: likewise the CPU time of a step, of all the threads of the (first) process.
        parts_ms: what a step spends loading data and in optimizers, the median of the runs.
    """

    rounds_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]
    parts_ms: Mapping[str, float]

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> Measured:
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
        """From the shortest to the longest run, over the median."""
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
    """The mean without the quarter of the least and the quarter of the greatest.

    A median would do for steps that are alike; but where workers make batches at the same time,
    short steps follow long ones, and it would be one of them.
    """
    drop = len(values) // 4
    return statistics.fmean(sorted(values)[drop : len(values) - drop])


@dataclass(frozen=True)
class Comparison:
    """Predicted against measured.

    Attributes:
        script: as it was called.
        changes: as they were asked for.
        before, after: steps measured without and with the changes.
        recorded_ms: the step of the recording that the prediction is from.
        prediction: from that recording, its times made as long as without it; None where there is
            none.
        reason: why there is none.
        applied: by change, what it was applied to.
        machine: of the runs.
    """

    script: str
    changes: tuple[str, ...]
    before: Measured
    after: Measured
    recorded_ms: float
    prediction: Prediction | None
    reason: str | None
    applied: Mapping[str, Mapping[str, Any]]
    machine: Mapping[str, Any]

    @property
    def measured_speedup(self) -> float:
        """Without over with: the median of the ratios within a round."""
        pairs = zip(self.before.rounds_ms, self.after.rounds_ms, strict=True)
        return statistics.median(before / after for before, after in pairs)

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less 1."""
        if self.prediction is None:
            return None
        return self.prediction.predicted_step_ms / self.after.step_ms - 1

    @property
    def right_sign(self) -> bool | None:
        """Whether faster was predicted and measured, or slower both times."""
        if self.prediction is None:
            return None
        return (self.prediction.speedup > 1) == (self.measured_speedup > 1)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
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
            "recorded_step_ms": self.recorded_ms,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "applied": {name: dict(facts) for name, facts in self.applied.items()},
            "machine": dict(self.machine),
            "prediction": prediction,
        }
