"""Two runs laid beside each other, part by part: medians over steps, the biggest changes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepscope.annotate.steps import ranks_with_steps
from stepscope.diff.run import Run, has_device, measure_run
from stepscope.diff.sample import Floats, Key, Sample
from stepscope.diff.significance import differs
from stepscope.trace.trace import Trace

VERDICTS = ("slower", "faster", "unclear", "one_step", "same", "new", "gone")
_MS = 1e-6


@dataclass(frozen=True)
class Side:
    """One side of a row: the median over the steps, the least and the most, ms; calls a step."""

    median_ms: float
    least_ms: float
    most_ms: float
    count: float | None


@dataclass(frozen=True)
class Row:
    """One part of the step before and after.

    `verdict`: slower or faster; unclear, where the change is within what the steps vary by;
    one_step, where a side has only one step, of which nothing can be told; same; new or gone,
    where one side has no such part.
    """

    key: Key
    before: Side | None
    after: Side | None
    change_ms: float
    ratio: float | None
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Two runs: `step` for the whole of it, `parts` for time use, stages, modules, operators and
    kernels, each with its biggest changes first."""

    before: Run
    after: Run
    step: Row
    parts: Mapping[str, list[Row]]

    @property
    def differing(self) -> dict[str, tuple[str, str]]:
        """What else is not the same on both sides: device, framework, ranks."""
        return {
            name: (self.before.facts[name], self.after.facts[name])
            for name in self.before.facts
            if self.before.facts[name] != self.after.facts[name]
        }

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write."""
        return {
            "before": _about(self.before),
            "after": _about(self.after),
            "differing": {name: list(pair) for name, pair in self.differing.items()},
            "step": asdict(self.step),
            **{
                name.replace(" ", "_"): list(map(asdict, rows)) for name, rows in self.parts.items()
            },
        }


def compare(
    before: Trace, after: Trace, *, rank: int | None = None, to_rank: int | None = None
) -> Comparison:
    """Compare the steps of two traces.

    Parts are aligned by name: stages, modules by their path, operators that launched device work,
    kernels. Where only one side has device work, operators on the CPU are compared.

    Args:
        before, after: annotated traces.
        rank: of `before`; by default its first.
        to_rank: of `after`; by default `rank` where it has that, else its first.

    Returns:
        Times are medians over steps, in ms a step.

    Raises:
        TraceError: if a side has no such rank, or no steps.

    Example:
        >>> compare(stepscope.open("a.json"), stepscope.open("b.json")).step.ratio  # doctest: +SKIP
    """
    on_device = has_device(before) and has_device(after)
    first = measure_run(before, rank, on_device)
    if to_rank is None and first.rank in ranks_with_steps(after):
        to_rank = first.rank
    second = measure_run(after, to_rank, on_device)
    return Comparison(
        first,
        second,
        _row(("step",), first.step_ns, second.step_ns, None, None),
        {name: _rows(first.parts[name], second.parts[name]) for name in first.parts},
    )


def _rows(before: Sample, after: Sample) -> list[Row]:
    rows = [
        _row(key, before.times.get(key), after.times.get(key), before.counts.get(key),
             after.counts.get(key))
        for key in dict.fromkeys([*before.times, *after.times])
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -abs(row.change_ms))


def _row(
    key: Key,
    before: Floats | None,
    after: Floats | None,
    calls_before: Floats | None,
    calls_after: Floats | None,
) -> Row:
    one, other = _side(before, calls_before), _side(after, calls_after)
    was, is_ = one.median_ms if one else 0.0, other.median_ms if other else 0.0
    verdict = _verdict(before, after, is_ - was)
    return Row(key, one, other, is_ - was, is_ / was if was else None, verdict)


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
    # By the medians that are shown: a mean follows a single slow step.
    return "slower" if change_ms > 0 else "faster"


def _about(run: Run) -> dict[str, Any]:
    return {
        "source": run.source,
        "rank": run.rank,
        "steps": run.steps,
        "evidence": run.evidence,
        "compared": "device work" if run.on_device else "operators on the CPU",
        **run.facts,
    }
