"""`stepscope.step()`: a script says itself where its steps end."""

from __future__ import annotations

from collections.abc import Callable

_watching: list[StepMarks] = []


def step() -> None:
    """Mark the end of a step; without a recording in this process it does nothing.

    From the first call on only these calls end steps, so call it once per step in the training
    loop, on one thread: for a step that is several optimizer steps, or that no optimizer ends.

    Example:
        >>> step()
    """
    for marks in tuple(_watching):
        marks.on_mark()


class StepMarks:
    """Calls `on_mark` for each `stepscope.step()` of the program, until closed."""

    def __init__(self, on_mark: Callable[[StepMarks], None]) -> None:
        self._on_mark = on_mark
        _watching.append(self)

    def on_mark(self) -> None:
        """The program marks a step."""
        self._on_mark(self)

    def close(self) -> None:
        """Ignore later marks."""
        if self in _watching:
            _watching.remove(self)
