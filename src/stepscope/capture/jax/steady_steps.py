"""Times steps of a JAX program without recording them and without waiting for their work.

JAX returns from a call before the work is done, so the time between two returns is unrelated to the
length of a step. But between two returns at which the loop is equally far ahead of its devices,
as many steps were completed as were begun: a step takes this time divided by their number. How far
the loop is ahead is seen from which results are ready, which asks the devices nothing.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from stepscope.capture.clock_readings import Reading, WholeSteps
from stepscope.capture.jax.jax_step_detector import arrays_in
from stepscope.capture.timed_steps import MOST, TimedSteps

_PATIENCE = 100  # steps: on a CPU, JAX gets 32 ahead
_SMALL_BYTES, _KEPT = 4096, 256
_Returns = list[tuple[int, Reading]]


class SteadySteps:
    """Times steps between returns at which the loop is equally far ahead of its devices."""

    def __init__(self) -> None:
        self._timer = WholeSteps()
        self._pending: list[list[Any]] = []
        self._returns: dict[int, _Returns] = defaultdict(list)  # by the number of steps ahead
        self._seen = 0

    @property
    def is_over(self) -> bool:
        """Whether enough steps have been timed, or the loop shows no steady steps."""
        return _covered(self._longest) >= MOST or self._seen > _PATIENCE

    @property
    def timed(self) -> TimedSteps:
        """The steps that have been timed, at most as many as are wanted."""
        steps = TimedSteps(self._timer)
        for (first, before), (last, after) in pairwise(self._longest):
            for place in range(last - first):
                if steps.is_complete:
                    break
                parts = (place / (last - first), (place + 1) / (last - first))
                steps.add(*(_between(before, after, part) for part in parts))
        return steps

    def step_ended(self, outputs: Any) -> None:
        """The call that ends a step has returned."""
        self._seen += 1
        self._pending.append(_small(outputs))
        self._pending = [arrays for arrays in self._pending if not _are_ready(arrays)]
        self._returns[len(self._pending)].append((self._seen, self._timer.read()))

    def interrupt(self) -> None:
        """The step that has begun is not like others."""
        self._returns.clear()

    @property
    def _longest(self) -> _Returns:
        """The returns at which the loop was equally far ahead, that have most steps between."""
        return max(self._returns.values(), key=_covered, default=[])


def _covered(returns: _Returns) -> int:
    """Steps between the first and the last of some returns."""
    return returns[-1][0] - returns[0][0] if returns else 0


def _between(before: Reading, after: Reading, part: float) -> Reading:
    def at(first: int, last: int) -> int:
        return first + round(part * (last - first))

    return Reading(
        at(before.elapsed_ns, after.elapsed_ns),
        at(before.cpu_ns, after.cpu_ns),
        at(before.process_cpu_ns, after.process_cpu_ns),
        {},
        at(before.page_faults or 0, after.page_faults or 0) if before.page_faults else None,
    )


def _small(outputs: Any) -> list[Any]:
    """Small arrays: all outputs of a program are ready at once, and large ones take memory.

    Keys of random numbers do not say whether they are ready.
    """
    arrays = (array for array in arrays_in(outputs) if hasattr(array, "is_ready"))
    return [array for array in arrays if array.nbytes <= _SMALL_BYTES][:_KEPT]


def _are_ready(arrays: list[Any]) -> bool:
    """Whether the work is done; not known, if all results were donated to the next step."""
    left = (array for array in arrays if not array.is_deleted())
    return any(array.is_ready() for array in left)
