"""Batch sizes worth trying, with what is predicted of each."""

from __future__ import annotations

from typing import Any

from stepscope.predict.curve import BEYOND
from stepscope.predict.profile import Profile


def suggestions(
    profile: Profile, batch: int, capacity: float | None = None
) -> list[dict[str, Any]]:
    """Batch sizes to offer beside the present one.

    First the one that comes near the limit of throughput, then twice and half the present one, then
    the largest that fits unless that is far beyond what was measured; none beyond memory, none
    twice.

    Args:
        profile: the models of the entry file.
        batch: the present batch size.
        capacity: bytes that the step may take, where they are known.

    Returns:
        `Profile.predict` of each.
    """
    most = _most(profile, capacity)
    trusted = BEYOND * max([batch, *(point.batch for point in profile.points)])
    largest = most if most is not None and most <= trusted else None
    wanted = [profile.suggestion(capacity), 2 * batch, max(batch // 2, 1), largest]
    sizes = dict.fromkeys(size for size in wanted if size and size != batch)
    return [profile.predict(size) for size in sizes if most is None or size <= most]


def _most(profile: Profile, capacity: float | None) -> int | None:
    """The largest batch size that memory allows."""
    limits = [profile.batch_for_bytes(capacity) if capacity else None]
    limits.append(profile.too_large - 1 if profile.too_large else None)
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None
