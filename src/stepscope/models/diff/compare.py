"""Compare two runs part by part: medians over steps, the largest changes first."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import msgspec
import numpy as np

from stepscope.base.arrays import Floats
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.steps.step_table import ranks_with_steps
from stepscope.facts.summary.selected_steps import MS
from stepscope.facts.summary.verdict import NOTABLE
from stepscope.models.diff.significance import differs, ratio_interval, steps_apart
from stepscope.models.diff.step_samples import Key, MeasuredRun, Sample, has_device, measure_run
from stepscope.trace.recorded_steps import QUIET
from stepscope.trace.trace import Trace

SIGNIFICANT = ("slower", "faster", "new", "gone")
Evidence = Literal["certain", "likely", "none"]


class Side(msgspec.Struct, frozen=True):
    """One side of a row: median, minimum and maximum over the steps, ms; calls per step."""

    median_ms: float
    least_ms: float
    most_ms: float
    count: float | None


class Row(msgspec.Struct, frozen=True):
    """One part of the step before and after."""

    key: Key  # its name; of a stage also `CPU` or `device`
    before: Side | None
    after: Side | None
    change_ms: float  # after minus before, of the medians
    ratio: float | None  # after over before; None without a time before
    # `slower` or `faster`; `unclear` if the change is within step-to-step noise, or may come from other
    # processes on the machine; `one_step` if a side has only one step, which says nothing about noise;
    # `same`; `new` or `gone` if only one side has the part
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
        both = {name: (before, self.after.facts[name]) for name, before in self.before.facts.items()}
        return {name: pair for name, pair in both.items() if pair[0] != pair[1]}

    @property
    def device_work(self) -> Row | None:
        """How long the busiest device works per step; None without a device."""
        return next((row for row in self.parts["time use"] if row.key == ("device busy",)), None)

    @property
    def apart(self) -> tuple[int, int]:
        """How many steps of one side lie beyond all of the other, and of how many."""
        return steps_apart(self.before.step_ns, self.after.step_ns)

    @property
    def evidence(self) -> Evidence:
        """How sure the change of the step is: `certain`, `likely`, or `none`."""
        if self.step.verdict in SIGNIFICANT:
            return "certain" if differs(self.before.step_ns, self.after.step_ns) else "likely"
        return "none"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The least and the most ratio of the step, at 95 % each; None if a side has only one step."""
        return ratio_interval(self.before.step_ns, self.after.step_ns)

    @property
    def cause(self) -> Row | None:
        """The part of the time use that changed most, beyond noise, in the direction of the step."""
        rows = (row for row in self.parts["time use"] or self.parts["stages"] if row.verdict in SIGNIFICANT)
        return next((row for row in rows if row.change_ms * self.step.change_ms > 0), None)

    def to_json(self) -> dict[str, Any]:
        """What `stepscope diff --json` prints."""
        return {
            "before": _run_json(self.before),
            "after": _run_json(self.after),
            "differing": {name: list(pair) for name, pair in self.differing.items()},
            "step": self.step,
            "evidence": {"level": self.evidence, "ratio": self.interval, "steps_apart": self.apart},
            "device_work": self.device_work,
            **{name.replace(" ", "_"): rows for name, rows in self.parts.items()},
        }


def compare(
    before: Trace, after: Trace, *, rank: int | None = None, to_rank: int | None = None
) -> RunComparison:
    """Compare the steps of two traces.

    Parts are matched by name: stages, modules by path, operators that launch device work, kernels.
    If only one side has device work, operators are compared by their CPU time.

    Args:
        rank: rank of `before`; by default its first.
        to_rank: rank of `after`; by default `rank` if it exists there, else its first.

    Returns:
        Times are medians over the steps, ms per step.

    Raises:
        TraceError: if a side lacks the rank, or has no steps.
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
        _row(("step",), (first.step_ns, second.step_ns), (None, None), shares, likely=True),
        {name: _rows(first.parts[name], second.parts[name], shares) for name in first.parts},
    )


def _rows(before: Sample, after: Sample, shares: Sequence[float]) -> list[Row]:
    rows = [
        _row(
            key,
            (before.times.get(key), after.times.get(key)),
            (before.counts.get(key), after.counts.get(key)),
            shares,
        )
        for key in dict.fromkeys([*before.times, *after.times])
    ]
    return sorted(rows, key=lambda row: -abs(row.change_ms))


Both = tuple[Floats | None, Floats | None]
"""Values of a part in the steps before and after; None where it has none."""


def _row(key: Key, times: Both, calls: Both, core_shares: Sequence[float], likely: bool = False) -> Row:
    side_a, side_b = map(_side, times, calls)
    was, is_ = side_a.median_ms if side_a else 0.0, side_b.median_ms if side_b else 0.0
    verdict = _verdict(*times, is_ - was, likely)
    longer, share = max(zip((was, is_), core_shares, strict=True))
    # The longer side may be as short as the other but for its wait for a core.
    waits = share < QUIET and share * longer <= min(was, is_)
    if verdict in ("slower", "faster") and waits:
        verdict = "unclear"
    return Row(key, side_a, side_b, is_ - was, is_ / was if was else None, verdict)


def _side(times: Floats | None, counts: Floats | None) -> Side | None:
    if times is None or not times.any():
        return None
    low, middle, high = (float(f(times)) * MS for f in (np.min, np.median, np.max))
    return Side(middle, low, high, None if counts is None else float(np.median(counts)))


def _verdict(before: Floats | None, after: Floats | None, change_ms: float, likely: bool) -> str:
    """What changed beyond noise; of few rows, such as the step alone, also what only likely did."""
    if before is None or not before.any():
        return "new"
    if after is None or not after.any():
        return "gone"
    if len(before) == len(after) and (np.sort(before) == np.sort(after)).all():
        return "same"
    certain = differs(before, after)
    if certain is None:
        return "one_step"
    if likely and not certain:
        low, high = ratio_interval(before, after) or (0.0, 0.0)
        certain = low > 1 if change_ms > 0 else 0 < high < 1
    if not certain or not change_ms:
        return "unclear"
    # The sign comes from the medians shown: a single slow step can pull the mean.
    return "slower" if change_ms > 0 else "faster"


def _run_json(run: MeasuredRun) -> dict[str, Any]:
    return {
        "source": run.source,
        "rank": run.rank,
        "steps": run.steps,
        "evidence": run.evidence,
        "compared": "device work" if run.on_device else "operators on the CPU",
        **run.facts,
    }


_LEAST = 0.01  # of the step: smaller changes explain nothing
_MOSTLY = 0.5  # of the step; chosen: a device that computes for so long bounds it
_ROUGH = 0.1  # a change of so much is given without a decimal
_CHANGED = (*SIGNIFICANT, "one_step")  # of one step the sentence says so first
_KINDS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "memcpy": "copies",
    "memset": "fills",
    "elementwise": "elementwise kernels",
    "reduction": "reductions",
    "embedding": "embeddings",
    "other": "other kernels",
}
# Time use in which a device waits, in words, and what then bounds the step, if that is known.
_WAITS = {
    "idle: data": ("waiting for data", "data loading"),
    "idle: host": ("idle time while the CPU prepares work", "the CPU"),
    "idle: launch": ("idle time between launch and start", "the CPU"),
    "idle: unknown": ("idle time", ""),
    "idle: synchronization": ("idle time at synchronizations", "synchronization"),
    "idle: one_off": ("idle time in one-off costs", ""),
    "busy: exposed communication": ("exposed communication", "communication"),
}


def explain(comparison: RunComparison) -> str:
    """What changed, in one sentence; no reason where a side lacks work."""
    if missing := next((run.missing for run in (comparison.before, comparison.after) if run.missing), ""):
        return f"{_step(comparison)}. Cannot tell why. Reason: {missing}."
    reasons = "; ".join(_reasons(comparison))
    between = ": " if comparison.evidence == "certain" else "; "
    return f"{_step(comparison)}{between if reasons else ''}{reasons}."


def _step(comparison: RunComparison) -> str:
    row = comparison.step
    change = (row.ratio or 1.0) - 1
    times = f"{_percent(change)} {'more' if change > 0 else 'less'} time"
    if row.verdict == "one_step":
        alone = "A" if len(comparison.before.steps) == 1 else "B"
        return f"B takes {times}, but {alone} has only one step, so this may be noise"
    if row.verdict == "unclear":
        loaded = comparison.before.load or comparison.after.load
        doubt = "other processes on the machine may have caused" if loaded else "is within noise"
        return f"B takes {times}, which {doubt}"
    if comparison.evidence == "likely":
        apart, steps = comparison.apart
        return f"B takes {times}, likely" + (f": {apart} of {steps} steps" if 2 * apart > steps else "")
    return "B takes as long as A" if row.verdict == "same" else f"B takes {times}"


def _reasons(comparison: RunComparison) -> Iterator[str]:
    if not comparison.before.on_device:
        yield from _longest_change(comparison, comparison.parts["stages"])
        return
    waits = [row for row in comparison.parts["time use"] if row.key[0] in _WAITS]
    reasons = [*_device_work(comparison), *_longest_change(comparison, waits)]
    work = comparison.device_work
    later = work is None or (waits and abs(waits[0].change_ms) > abs(work.change_ms))
    yield from reversed(reasons) if later else reasons
    before, after = (_bound(comparison, side) for side in ("before", "after"))
    if before and before == after:
        yield f"the step stays bound by {after}"
    elif before and after:
        yield f"the step is now bound by {after}, before by {before}"


def _device_work(comparison: RunComparison) -> Iterator[str]:
    row = comparison.device_work
    if row is None or row.ratio is None:
        return
    if row.verdict not in _CHANGED or abs(row.ratio - 1) < _LEAST:
        yield "device work is the same"
        return
    kinds = (part for part in comparison.parts["kinds"] if part.change_ms * row.change_ms > 0)
    kind = next((part.key[0] for part in kinds if part.verdict in _CHANGED), "")
    moved = "rose" if row.change_ms > 0 else "fell"
    mostly = f" (mostly {_KINDS.get(kind, kind)})" if kind else ""
    yield f"device work {moved} by {_percent(row.ratio - 1)}{mostly}"


def _longest_change(comparison: RunComparison, rows: list[Row]) -> Iterator[str]:
    least = _LEAST * (comparison.step.before.median_ms if comparison.step.before else 0.0)
    for row in rows:
        if row.verdict in _CHANGED and abs(row.change_ms) >= least:
            name = _WAITS.get(row.key[0], (" ".join(row.key).replace("_", " "),))[0]
            yield f"{name} {'rose' if row.change_ms > 0 else 'fell'} by {rounded(abs(row.change_ms))} ms"
            return


def _percent(change: float) -> str:
    return f"{abs(change):.0%}" if abs(change) >= _ROUGH else f"{abs(change):.1%}"


def _bound(comparison: RunComparison, side: str) -> str:
    """What bounds the step of one side: the device if it computes for half of it, and awaits no data.

    Where it also awaits launches for a notable part, shorter kernels alone shorten no step.
    """
    rows = comparison.parts["time use"]
    time = {row.key[0]: value.median_ms for row in rows if (value := getattr(row, side))}
    whole: Side | None = getattr(comparison.step, side)
    exchanged = time.get("busy: exposed communication", 0.0)
    spent: dict[str, float] = defaultdict(float)
    for name, (_, cause) in _WAITS.items():
        spent[cause] += time.get(name, 0.0) if cause else 0.0
    longest = max(spent, key=lambda cause: spent[cause])
    whole_ms = whole.median_ms if whole else inf
    is_of_device = time.get("device busy", 0.0) - exchanged >= _MOSTLY * whole_ms
    waits = spent[longest] >= NOTABLE * whole_ms
    if is_of_device and (longest == "the CPU" or not waits):
        return "the device and the CPU" if waits else "the device"
    return longest if spent[longest] else ""
