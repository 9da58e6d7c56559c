"""Batch sizes worth trying, with the prediction for each."""

from __future__ import annotations

from typing import Any

from stepscope.batch_size.entry_profile import Profile


def suggestions(
    profile: Profile, batch: int, capacity: float | None = None
) -> list[dict[str, Any]]:
    """Batch sizes to offer instead of the current one.

    First the one that comes near the limit of throughput, then twice and half the current one, then
    the largest that fits. None exceeds memory or lies where predictions are not trusted
    (`Profile.trusts`); where the prediction of the held-back point failed there are none at all.

    Args:
        profile: the models of the entry file.
        batch: the current batch size.
        capacity: bytes that the step may take, if known.

    Returns:
        `Profile.predict` of each.
    """
    most = _most(profile, capacity)
    wanted = [profile.suggestion(capacity), 2 * batch, max(batch // 2, 1), most]
    sizes = dict.fromkeys(size for size in wanted if size and size != batch)
    fitting = (size for size in sizes if most is None or size <= most)
    return [profile.predict(size) for size in fitting if profile.trusts(size)]


def _most(profile: Profile, capacity: float | None) -> int | None:
    """The largest batch size that memory allows."""
    limits = [profile.batch_for_bytes(capacity) if capacity else None]
    limits.append(profile.too_large - 1 if profile.too_large else None)
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None
