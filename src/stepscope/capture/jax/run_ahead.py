"""Lets a program run at most one step ahead of its devices while steps are recorded.

JAX returns from a call before the work is done. A loop that reads nothing back gets dozens of steps
ahead, and the time between two calls is then unrelated to the length of a step. If each step waits
for the work of the previous step, the next batch is still loaded while the device computes, and a
step takes as long as it does on average.
"""

from __future__ import annotations

from typing import Any

from jax._src import array as jax_array

from stepscope.capture.jax.micro_batches import arrays_in

_KEPT = 4
_ARRAY: Any = getattr(jax_array, "ArrayImpl", None)
# As it is before waits of the program are watched: ours are none of the program's.
_BLOCK = getattr(_ARRAY, "block_until_ready", None)


class RunAhead:
    """Waits, at the end of each step, for the results of the previous step."""

    def __init__(self) -> None:
        self._last: list[Any] = []

    def step_ended(self, outputs: Any) -> None:
        """Wait for the previous step; for this one if all results of that were donated."""
        if self._last and not _wait(self._last):
            _wait(_smallest(outputs))
        self._last = _smallest(outputs)

    def drain(self) -> None:
        """Wait for all requested work."""
        _wait(self._last)
        self._last = []


def catch_up(outputs: Any) -> None:
    """Wait for all requested work; `outputs` is the last of it."""
    _wait(_smallest(outputs))


def _smallest(outputs: Any) -> list[Any]:
    """A few small arrays: all outputs of a program are ready at once, and large ones may be
    donated."""
    return sorted(arrays_in(outputs), key=lambda array: array.nbytes)[:_KEPT]


def _wait(arrays: list[Any]) -> bool:
    """Wait for the first array that still exists; False if none does."""
    for array in arrays:
        if not array.is_deleted():
            _BLOCK(array) if _BLOCK and isinstance(array, _ARRAY) else array.block_until_ready()
            return True
    return False
