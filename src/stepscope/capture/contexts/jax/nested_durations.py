"""Durations that are reported when they end, where one may contain earlier ones."""

from __future__ import annotations

_MOST = 64


class NestedDurations:
    """Finds the part of each duration that no earlier one covers, so that the parts add up.

    Example:
        >>> durations = NestedDurations()
        >>> durations.own(5.0, 1.0)
        1.0
        >>> durations.own(8.0, 6.0)  # contains it
        5.0
    """

    def __init__(self) -> None:
        self._ended: list[tuple[float, float]] = []

    def own(self, now: float, duration: float) -> float:
        """The part of a duration that ends now which is not within an earlier one, seconds."""
        begin, inside = now - duration, 0.0
        while self._ended and self._ended[-1][0] >= begin:
            inside += self._ended.pop()[1]
        self._ended = [*self._ended[1 - _MOST :], (begin, duration)]
        return max(duration - inside, 0.0)
