"""Compare two runs part by part: medians over steps, the largest changes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.annotate.steps.step_table import ranks_with_steps
from stepscope.arrays import Floats
from stepscope.diff.sample import Key, Sample
from stepscope.diff.significance import differs
from stepscope.diff.step_samples import MeasuredRun, has_device, measure_run
from stepscope.trace.core_share import QUIET
from stepscope.trace.trace import Trace

VERDICTS = ("slower", "faster", "unclear", "one_step", "same", "new", "gone")
SIGNIFICANT = ("slower", "faster", "new", "gone")
_MS = 1e-6


@dataclass(frozen=True)
class Side:
    """One side of a row: median, minimum and maximum over the steps, ms; calls per step."""

    median_ms: float
    least_ms: float
    most_ms: float
    count: float | None


@dataclass(frozen=True)
class Row:
    """One part of the step before and after.

    `verdict`: `slower` or `faster`; `unclear` if the change is within step-to-step noise, or may
    come from other processes on the machine;
    `one_step` if a side has only one step, which says nothing about noise; `same`; `new` or `gone`
    if only one side has the part.
    """

    key: Key
    before: Side | None
    after: Side | None
    change_ms: float
    ratio: float | None
    verdict: str


@dataclass(frozen=True)
class RunComparison:
    """Two runs: `step` compares whole steps; `parts` compares time use, stages, kinds of work,
    modules, operators and kernels, largest change first."""

    before: MeasuredRun
    after: MeasuredRun
    step: Row
    parts: Mapping[str, list[Row]]

    @property
    def differing(self) -> dict[str, tuple[str, str]]:
        """Facts that differ between the sides: device, framework, ranks."""
        return {
            name: (self.before.facts[name], self.after.facts[name])
            for name in self.before.facts
            if self.before.facts[name] != self.after.facts[name]
        }

    @property
    def device_work(self) -> Row | None:
        """How long the busiest device works per step; None without a device."""
        return next((row for row in self.parts["time use"] if row.key == ("device busy",)), None)

    @property
    def significant(self) -> list[Row]:
        """Changes of the time use beyond noise, the largest first."""
        rows = self.parts["time use"] or self.parts["stages"]
        return [row for row in rows if row.verdict in SIGNIFICANT]

    @property
    def beyond(self) -> int:
        """Steps of the second run that are slower, or faster, than all of the first: as `step`."""
        before, after = self.before.step_ns, self.after.step_ns
        slower = self.step.change_ms > 0
        return int((after > before.max()).sum() if slower else (after < before.min()).sum())

    @property
    def cause(self) -> Row | None:
        """The part of the time use that changed most in the direction of the step."""
        rows = (row for row in self.significant if row.change_ms * self.step.change_ms > 0)
        return next(rows, None)

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
        return {
            "before": _run_json(self.before),
            "after": _run_json(self.after),
            "differing": {name: list(pair) for name, pair in self.differing.items()},
            "step": asdict(self.step),
            "device_work": self.device_work and asdict(self.device_work),
            **{
                name.replace(" ", "_"): list(map(asdict, rows)) for name, rows in self.parts.items()
            },
        }


def compare(
    before: Trace, after: Trace, *, rank: int | None = None, to_rank: int | None = None
) -> RunComparison:
    """Compare the steps of two traces.

    Parts are matched by name: stages, modules by path, operators that launch device work, kernels.
    If only one side has device work, operators are compared by their CPU time.

    Args:
        before, after: annotated traces.
        rank: rank of `before`; by default its first.
        to_rank: rank of `after`; by default `rank` if it exists there, else its first.

    Returns:
        Times are medians over the steps, ms per step.

    Raises:
        TraceError: if a side lacks the rank, or has no steps.

    Example:
        >>> compare(stepscope.open("a.json"), stepscope.open("b.json")).step.ratio  # doctest: +SKIP
    """
    on_device = has_device(before) and has_device(after)
    first = measure_run(before, rank, on_device)
    if to_rank is None and first.rank in ranks_with_steps(after):
        to_rank = first.rank
    second = measure_run(after, to_rank, on_device)
    shares = [run.core_share or 1.0 for run in (first, second)]
    return RunComparison(
        first,
        second,
        _row(("step",), first.step_ns, second.step_ns, None, None, shares),
        {name: _rows(first.parts[name], second.parts[name], shares) for name in first.parts},
    )


def _rows(before: Sample, after: Sample, shares: Sequence[float]) -> list[Row]:
    rows = [
        _row(key, before.times.get(key), after.times.get(key), before.counts.get(key),
             after.counts.get(key), shares)
        for key in dict.fromkeys([*before.times, *after.times])
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row.change_ms))


def _row(
    key: Key,
    before: Floats | None,
    after: Floats | None,
    calls_before: Floats | None,
    calls_after: Floats | None,
    core_shares: Sequence[float],
) -> Row:
    side_a, side_b = _side(before, calls_before), _side(after, calls_after)
    was, is_ = side_a.median_ms if side_a else 0.0, side_b.median_ms if side_b else 0.0
    verdict = _verdict(before, after, is_ - was)
    if verdict in ("slower", "faster") and _waiting_explains(was, is_, core_shares):
        verdict = "unclear"
    return Row(key, side_a, side_b, is_ - was, is_ / was if was else None, verdict)


def _side(times: Floats | None, counts: Floats | None) -> Side | None:
    if times is None or not times.any():
        return None
    low, middle, high = (float(f(times)) * _MS for f in (np.min, np.median, np.max))
    return Side(middle, low, high, None if counts is None else float(np.median(counts)))


def _verdict(before: Floats | None, after: Floats | None, change_ms: float) -> str:
    if before is None or not before.any():
        return "new"
    if after is None or not after.any():
        return "gone"
    if len(before) == len(after) and (np.sort(before) == np.sort(after)).all():
        return "same"
    certain = differs(before, after)
    if certain is None:
        return "one_step"
    if not certain or not change_ms:
        return "unclear"
    # The sign comes from the medians shown: a single slow step can pull the mean.
    return "slower" if change_ms > 0 else "faster"


def _waiting_explains(was: float, is_: float, core_shares: Sequence[float]) -> bool:
    """Whether the longer side may be as short as the other but for its wait for a core."""
    longer, share = max(zip((was, is_), core_shares, strict=True))
    return share < QUIET and share * longer <= min(was, is_)


def _run_json(run: MeasuredRun) -> dict[str, Any]:
    return {
        "source": run.source,
        "rank": run.rank,
        "steps": run.steps,
        "evidence": run.evidence,
        "compared": "device work" if run.on_device else "operators on the CPU",
        **run.facts,
    }
