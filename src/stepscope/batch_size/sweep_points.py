"""The batch sizes to measure.

As SKYLINE does: the user's own first, then larger ones by a constant; smaller ones where memory
runs out. Beyond SKYLINE's three a quarter and a half of the user's own, as people go both ways from
it. The last one is held back, to check how well the model of the others predicts.

Source: Yu et al., Skyline (UIST 2020), "Making Performance Predictions".
"""

from __future__ import annotations

from collections.abc import Collection

POINTS = 3
WANTED = POINTS + 2


def next_batch(
    start: int, measured: Collection[int], too_large: int | None = None, wanted: int = WANTED
) -> int | None:
    """The batch size to try next.

    Args:
        start: the user's own.
        measured: those that are done.
        too_large: the smallest that did not fit into memory.
        wanted: how many are needed.

    Returns:
        The next one; None if there are enough, or no more that can fit.

    Example:
        >>> next_batch(32, []), next_batch(32, [32]), next_batch(32, [32, 48], too_large=64)
        (32, 48, 8)
    """
    if len(measured) >= wanted:
        return None
    for batch in _candidates(start, wanted, too_large, measured):
        if batch not in measured and (too_large is None or batch < too_large):
            return batch
    return None


def _candidates(
    start: int, wanted: int, too_large: int | None, measured: Collection[int]
) -> list[int]:
    if too_large is not None and too_large <= start:
        return _below(too_large, measured)
    step = max(1, round(start / 2))
    up = [start + step * count for count in range(wanted)]
    below = [start // part for part in (4, 2) if start >= part]
    less = max(1, start // 4)
    down = [start - less * count for count in range(1, start // less)]
    rest = list(range(start - 1, 0, -1))[: 2 * wanted]
    return [*up[:POINTS], *below, *up[POINTS:], *down, *rest]


def _below(too_large: int, measured: Collection[int]) -> list[int]:
    """Not even the first fits: halve until one does, then go down from there."""
    top = max(measured, default=0)
    if not top:
        return [too_large // 2] if too_large > 1 else []
    less = max(1, top // 4)
    return [*range(top - less, 0, -less), *range(top - 1, 0, -1)]
