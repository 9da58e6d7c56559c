"""Times steps of a JAX program without recording them and without waiting for their work.

JAX returns from a call before the work is done, so the time between two returns is unrelated to the
length of a step while the loop gets further ahead of its devices. Once it is as far ahead as it
gets, it returns as often as steps complete. How far it is ahead is seen from which results are
ready, which asks the devices nothing.
"""

from __future__ import annotations

from typing import Any

from stepscope.capture.clock_readings import WholeSteps
from stepscope.capture.jax.jax_step_detector import arrays_in
from stepscope.capture.timed_steps import TimedSteps

_PATIENCE = 100  # steps: on a CPU, JAX gets 32 ahead
_SMALL_BYTES, _KEPT = 4096, 256


class SteadySteps:
    """Times the steps of a loop that gets no further ahead of its devices."""

    def __init__(self) -> None:
        self.timed = TimedSteps(WholeSteps())
        self._pending: list[list[Any]] = []
        self._most_ahead = 0
        self._seen = 0

    @property
    def is_over(self) -> bool:
        """Whether enough steps have been timed, or the loop shows no steady steps."""
        return self.timed.is_complete or self._seen > _PATIENCE

    def step_ended(self, outputs: Any) -> None:
        """The call that ends a step has returned."""
        self._seen += 1
        self._pending = [arrays for arrays in self._pending if not _are_ready(arrays)]
        if len(self._pending) > self._most_ahead:
            self._most_ahead = len(self._pending)
            self.timed = TimedSteps(WholeSteps())
        self.timed.follow()
        self._pending.append(_small(outputs))

    def interrupt(self) -> None:
        """The step that has begun is not like others."""
        self.timed.abandon()


def _small(outputs: Any) -> list[Any]:
    """Small arrays: all outputs of a program are ready at once, and large ones take memory."""
    return [array for array in arrays_in(outputs) if array.nbytes <= _SMALL_BYTES][:_KEPT]


def _are_ready(arrays: list[Any]) -> bool:
    """Whether the work is done; not known, if all results were donated to the next step."""
    left = (array for array in arrays if not array.is_deleted())
    return any(array.is_ready() for array in left)
