"""Predictions over a range of batch sizes, for the curves of a page."""

from __future__ import annotations

from typing import Any

from stepscope.batch_size.breakdown import StepBreakdown
from stepscope.batch_size.entry_profile import Profile

_CHOICES = 256
BEYOND = 4  # times the largest batch size measured; further than that no line may be trusted


def curve(
    profile: Profile,
    batch: int,
    breakdown: StepBreakdown | None = None,
    capacity: float | None = None,
) -> list[dict[str, Any]]:
    """Predictions from one sample to as many as memory allows.

    Args:
        profile: the models of the entry file.
        batch: the present batch size, always among them.
        breakdown: splits the memory of each.
        capacity: bytes that a step may take.

    Returns:
        `Profile.predict` by batch size, with `memory`, the peak by kind, where there is a
        breakdown; at most about 256 of them, four times beyond what was measured at most.
    """
    measured = [point.batch for point in profile.points]
    most = _most(profile, max([*measured, batch]), capacity)
    stride = -(-most // _CHOICES)
    grid = range(stride, most + 1, stride)
    sizes = sorted({1, *grid, *(size for size in (*measured, batch) if size <= most)})
    return [_row(profile, breakdown, size) for size in sizes]


def _most(profile: Profile, largest: int, capacity: float | None) -> int:
    limits = [BEYOND * largest]
    if profile.too_large:
        limits.append(profile.too_large - 1)
    fits = profile.batch_for_bytes(capacity) if capacity else None
    if fits:
        limits.append(fits)
    return max(min(limits), 1)


def _row(profile: Profile, breakdown: StepBreakdown | None, batch: int) -> dict[str, Any]:
    row = profile.predict(batch)
    if breakdown is not None and breakdown.memory and "bytes" in row:
        row["memory"] = breakdown.memory_at(batch, row["bytes"])
    return row
