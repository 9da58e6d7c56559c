"""How long steps take, on the CPU's clock."""

from __future__ import annotations

import itertools
import time


class StepClock:
    """Notes the end of each step."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._begin = time.perf_counter()

    def tick(self) -> None:
        """A step ends here; the first tick is where the first one begins."""
        self._ends.append(time.perf_counter())

    @property
    def steps(self) -> int:
        """Steps timed."""
        return max(0, len(self._ends) - 1)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was made."""
        return time.perf_counter() - self._begin

    def lengths_ms(self) -> list[float]:
        """The length of each step."""
        return [1e3 * (end - start) for start, end in itertools.pairwise(self._ends)]
