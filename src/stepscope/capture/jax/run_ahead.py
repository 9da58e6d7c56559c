"""Lets a program run at most one step ahead of its devices while steps are recorded.

JAX returns from a call before the work is done; a loop that reads nothing back gets dozens of steps
ahead, and the time between two calls then says nothing of how long a step takes. Where each step
waits for the work of the one before it, the next batch is still loaded while the device computes,
and a step lasts as long as it does in the long run.
"""

from __future__ import annotations

from typing import Any

from stepscope.capture.jax.cycle import arrays_in

_KEPT = 4


class RunAhead:
    """Waits, at the end of each step, for what the step before it has returned."""

    def __init__(self) -> None:
        self._last: list[Any] = []

    def step_ended(self, outputs: Any) -> None:
        """Wait for the step before; where all it returned has been given away, for this one."""
        if self._last and not _wait(self._last):
            _wait(_smallest(outputs))
        self._last = _smallest(outputs)

    def drain(self) -> None:
        """Wait for all that was asked for."""
        _wait(self._last)
        self._last = []


def catch_up(outputs: Any) -> None:
    """Wait for all that was asked for so far, `outputs` the last of it."""
    _wait(_smallest(outputs))


def _smallest(outputs: Any) -> list[Any]:
    """A few small arrays: all of a program's outputs are ready at once, and large ones may be
    wanted no longer."""
    return sorted(arrays_in(outputs), key=lambda array: array.nbytes)[:_KEPT]


def _wait(arrays: list[Any]) -> bool:
    """Wait for one that can be waited for."""
    for array in arrays:
        if not array.is_deleted():
            array.block_until_ready()
            return True
    return False
