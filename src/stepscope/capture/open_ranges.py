"""Prevents a range of the script from beginning under one profiler and ending under another.

torch (2.13) keeps, in every open range, a pointer into the profiler that saw it begin. If that
profiler has stopped and another one runs when the range ends, torch writes through the pointer into
freed memory. A range that ends while no profiler runs is safe.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from stepscope.capture.patch import replace

_record_function: Any = torch.autograd.profiler.record_function


class OpenRanges:
    """The `record_function` ranges that began under a profiler of ours and have not ended."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._recording = False
        self._enter, self._exit = _record_function.__enter__, _record_function.__exit__
        self._restore = [
            replace(_record_function, "__enter__", self._watch_enter()),
            replace(_record_function, "__exit__", self._watch_exit()),
        ]

    def profiler_starts(self) -> None:
        """Ranges that begin from now on matter."""
        self._recording = True

    def profiler_stopped(self) -> None:
        """Ranges that begin from now on do not matter."""
        self._recording = False

    @property
    def are_left(self) -> bool:
        """Whether another profiler must wait."""
        return bool(self._open)

    def close(self) -> None:
        """Leave torch as it was."""
        while self._restore:
            self._restore.pop()()

    def _watch_enter(self) -> Any:
        @functools.wraps(self._enter)
        def enter(region: Any) -> Any:
            if self._recording:
                self._open.add(id(region))
            return self._enter(region)

        return enter

    def _watch_exit(self) -> Any:
        @functools.wraps(self._exit)
        def exit(region: Any, *error: Any) -> Any:
            self._open.discard(id(region))
            return self._exit(region, *error)

        return exit
