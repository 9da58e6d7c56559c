"""The result of a verification: predicted against measured, with the spread of the rounds."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stepscope.base.arrays import Mask, Times
from stepscope.base.students_t import error_of_mean
from stepscope.graph import Graph
from stepscope.models.whatif import Prediction


@dataclass(frozen=True)
class MeasuredRuns:
    """A step's length over several runs."""

    rounds_ms: tuple[float, ...]  # the step of each run, ms: the mean of the middle half of its steps
    cpu_ms: tuple[float, ...]  # the CPU time of a step in each run, all threads of the (first) process, ms
    # Time of a step in data loading and in optimizers, the median of the runs, ms.
    parts_ms: Mapping[str, float]

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> "MeasuredRuns":
        """From the facts of each run."""
        wall, cpu = (tuple(middle_mean(run[name]) / 1e6 for run in runs) for name in ("steps_ns", "cpu_ns"))
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
        return {"step_ms": self.step_ms, "spread": self.spread, **asdict(self)}


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest quarter.

    A median would do for similar steps; but with workers that make batches at the same time, short
    steps follow long ones, and it would be one of them.
    """
    drop = len(values) // 4
    return statistics.fmean(sorted(values)[drop : len(values) - drop])


@dataclass(frozen=True)
class TrialComparison:
    """Predicted against measured."""

    script: str
    changes: tuple[str, ...]
    before: MeasuredRuns
    after: MeasuredRuns
    recorded_ms: float  # the step of the recording on which the prediction is based
    prediction: Prediction | None  # from that recording, corrected for its overhead; None if there is none
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
        ratios = [math.log(before / after) for before, after in pairs]
        middle, half = statistics.fmean(ratios), error_of_mean(ratios)
        if math.isinf(half):
            return None
        measured = self.measured_speedup
        return min(math.exp(middle - half), measured), max(math.exp(middle + half), measured)

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
        """What `stepscope verify --json` prints."""
        prediction = self.prediction
        return {
            "script": self.script,
            "changes": self.changes,
            "predicted_step_ms": prediction and prediction.predicted_step_ms,
            "range": prediction and prediction.range,
            "predicted_speedup": prediction and prediction.speedup,
            "no_prediction": self.reason,
            "measured_speedup": self.measured_speedup,
            "error": self.error,
            "right_sign": self.right_sign,
            "measured_speedup_range": self.measured_range,
            "verdict": self.verdict,
            "recorded_step_ms": self.recorded_ms,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "applied": self.applied,
            "machine": self.machine,
            "prediction": prediction,
        }


_ROUNDS = 60  # of halving: to the last bit of a time


def unrecorded(graph: Graph, measured: MeasuredRuns) -> Graph:
    """The same steps without the overhead of recording, so that predictions match unrecorded runs.

    Recording costs the same for every event, so small operators suffer most. The unrecorded times
    of data loading, the optimizer and the rest of a step are known; within each, every task loses
    the same time, but no more than it has. A part that took longer unrecorded is stretched. With
    device work, the CPU overhead of recording seldom matters, and all times scale alike.
    """
    factor = measured.step_ms * 1e6 / float(graph.window.measured_ns.mean())
    if graph.on_device.any():
        return _measured_as(_stretched(graph, factor), factor)
    columns = {name: graph.tasks[name].copy() for name in ("duration_ns", "gap_ns")}
    for part, step_ms in _parts(graph, measured):
        _set_total(columns, part, step_ms * 1e6 * len(graph.window.steps))
    return _measured_as(graph.with_tasks(**columns), factor)


def _parts(graph: Graph, measured: MeasuredRuns) -> Iterator[tuple[Mask, float]]:
    """Tasks of the training loop by part, with the time of the part per step, ms."""
    main = graph.of_main_threads
    stage = graph.tasks.text("stage")
    rest, rest_ms = main, measured.step_ms
    for name, part_ms in measured.parts_ms.items():
        part = main & stage.mask(name)
        if part.any():
            yield part, part_ms
            rest, rest_ms = rest & ~part, rest_ms - part_ms
    yield rest, rest_ms


def _set_total(columns: dict[str, Times], part: Mask, total_ns: float) -> None:
    """Change the times of some tasks so that they add up to a total."""
    length, gap = (columns[name][part] for name in ("duration_ns", "gap_ns"))
    excess = float((length + gap).sum()) - total_ns
    if excess > 0:
        cost = _shared(length + gap, excess)
        from_gap = np.minimum(gap, cost)
        length, gap = length - (cost - from_gap), gap - from_gap
    elif excess < 0:
        factor = total_ns / max(total_ns + excess, 1.0)
        length, gap = _times(length, factor), _times(gap, factor)
    columns["duration_ns"][part], columns["gap_ns"][part] = length, gap


def _shared(times: Times, total: float) -> Times:
    """The same time from each, or all of it if it has less, so that they add up to `total`."""
    low, high = 0.0, float(times.max(initial=0))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(times, middle).sum() > total else (middle, high)
    return np.rint(np.minimum(times, high)).astype(np.int64)


def _stretched(graph: Graph, factor: float) -> Graph:
    links = graph.links.with_columns(lag_ns=_times(graph.links["lag_ns"], factor))
    names = ("duration_ns", "gap_ns", "earliest_ns")
    columns = {name: _times(graph.tasks[name], factor) for name in names}
    return replace(graph, links=links).with_tasks(**columns)


def _measured_as(graph: Graph, factor: float) -> Graph:
    """The graph with the measured times of its steps scaled."""
    window, begin = graph.window, graph.window.starts_ns[0]
    starts = begin + _times(window.starts_ns - begin, factor)
    first, ends = (begin + _times(at - begin, factor) for at in (window.begin_ns, window.ends_ns))
    return replace(graph, window=replace(window, starts_ns=starts, begin_ns=int(first), ends_ns=ends))


def _times(values: Any, factor: float) -> Times:
    return np.rint(np.asarray(values) * factor).astype(np.int64)
