"""Answers of `stepscope whatif` as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from stepscope.facts.summary.numbers import size

if TYPE_CHECKING:
    from stepscope.models.whatif import Prediction
    from stepscope.models.whatif.change import Change
    from stepscope.models.whatif.ranking import Fit, Ranking

_LEAST_MS = 0.0005  # shorter times would be shown as 0.000


def change_lines(changes: Iterable[Change]) -> Iterator[str]:
    for group, members in groupby(changes, key=lambda change: change.group):
        yield f"{group}"
        for change in members:
            parameters = ",".join(f"{key}=…" for key in change.parameters)
            yield f"  {change.name}{':' if parameters else ''}{parameters}"
            yield f"      {change.summary}"


def ranking_lines(ranking: Ranking) -> Iterator[str]:
    for gain in ranking.gains:
        yield (
            f"{gain.speedup:6.2f}x  {gain.predicted_step_ms:10.3f} ms  {' '.join(gain.changes)}"
            f"{_uncertain(gain)}\n{'':23}{', '.join(gain.basis)}"
        )
    if not ranking.gains:
        yield "none of the changes applies to these steps"
    if ranking.unmeasured:
        names = ", ".join(ranking.unmeasured)
        yield f"run `stepscope calibrate FILE` on the same machine to predict: {names}"
    if others := [name for name in ranking.reasons if name not in ranking.unmeasured]:
        yield f"not applicable: {', '.join(others)} (reasons: --json)"


def fit_lines(fits: Sequence[Fit], usable: int) -> Iterator[str]:
    """The changes that make a step fit into some bytes, cheapest first."""
    if not fits:
        yield f"nothing that was tried makes the step fit into {size(usable)}"
        return
    if not fits[0].changes:
        peak = size(fits[0].memory.measured_bytes)
        yield f"the step fits into {size(usable)} as it is: {peak} at the peak"
        return
    for fit in fits:
        cost = f"{fit.cost:+8.1%}" if fit.cost is not None else f"{'?':>8}"
        peak = size(fit.memory.predicted_bytes)
        yield f"{cost} time per sample  {peak:>10} at the peak  {' '.join(fit.changes)}"
        if fit.why_no_time:
            yield f"{'':10}{fit.why_no_time}"


def job_lines(facts: Mapping[str, Any]) -> list[str]:
    """A prediction for all ranks of a job, as `--json` has it."""
    return [
        f"measured   {facts['measured_step_ms']:10.3f} ms per step",
        f"replayed   {facts['replayed_step_ms']:10.3f} ms, {facts['replay_error']:+.2%}",
        f"predicted  {facts['predicted_step_ms']:10.3f} ms, {facts['speedup']:.2f}x  "
        f"{' '.join(facts['changes']) or 'no change'}",
        f"based on   {facts['basis'][0]} of {facts['ranks']} ranks",
        "",
        "assumptions",
        "  times are the mean of all ranks; a collective begins when the last rank arrives, and "
        "then takes as long as it did",
    ]


def prediction_lines(answer: Prediction) -> list[str]:
    """Measured and predicted times, what they rest on, and where the step spends them."""
    low, high = answer.range
    lines = [
        f"measured   {answer.measured_step_ms:10.3f} ms per step{_device(answer)}",
        f"replayed   {answer.replayed_step_ms:10.3f} ms, {answer.replay_error:+.2%}{_left_out(answer)}",
        f"predicted  {answer.predicted_step_ms:10.3f} ms, {answer.speedup:.2f}x "
        f"({low:.3f} to {high:.3f} ms)  {' '.join(answer.changes) or 'no change'}"
        f"{_uncertain(answer)}",
        *_memory_lines(answer),
        *(f"based on   {basis}" for basis in dict.fromkeys(answer.basis) if basis),
        "",
        f"{'ms per step':<22}{'before':>12}{'after':>12}",
    ]
    before, after = answer.breakdown["before"], answer.breakdown["after"]
    labels = {
        "cpu_only_ms": "only CPU",
        "device_only_ms": "only device",
        "parallel_ms": "both",
        "idle_ms": "neither",
    }
    lines += [_row(text, getattr(before, key), getattr(after, key)) for key, text in labels.items()]
    lines += ["", "critical path"]
    stages = [answer.critical_path[side]["stages"] for side in ("before", "after")]
    names = dict.fromkeys(name for part in stages for name in part)
    rows = [(name, stages[0].get(name, 0.0), stages[1].get(name, 0.0)) for name in names]
    lines += [_row(*row) for row in rows if max(row[1:]) >= _LEAST_MS]
    return [*lines, "", "assumptions", *(f"  {text}" for text in answer.assumptions)]


def _device(answer: Prediction) -> str:
    """What the busiest device does in the measured step; empty if none works."""
    if answer.device_busy_ms is None or answer.device_idle_ms is None:
        return ""
    return f", device busy {answer.device_busy_ms:.3f} ms, idle {answer.device_idle_ms:.3f} ms"


def _left_out(answer: Prediction) -> str:
    """What the replay leaves out, since later steps do not pay it; empty if nothing."""
    if answer.one_off_ms < _LEAST_MS:
        return ""
    return f", without {answer.one_off_ms:.3f} ms of one-off costs"


def _memory_lines(answer: Prediction) -> list[str]:
    memory = answer.memory
    if memory is None:
        return []
    error = "error not measured" if memory.error is None else f"error up to {memory.error:.0%}"
    after = f" to {size(memory.predicted_bytes)} ({error})" if answer.changes else ""
    unknown = f"; effect not known: {', '.join(memory.unknown)}" if memory.unknown else ""
    return [f"peak       {size(memory.measured_bytes)} on {memory.device}{after}{unknown}"]


def _uncertain(answer: Prediction) -> str:
    if answer.is_certain or not answer.changes:
        return ""
    return "  (within the error: the range includes the unchanged step)"


def _row(label: str, before: float, after: float) -> str:
    return f"  {label:<20}{before:>12.3f}{after:>12.3f}"
