"""Ranges in the trace, of which none outlives the profiler that saw it begin.

torch (2.13) keeps, in every open range, a pointer into the profiler that saw it begin. If that
profiler has stopped and another one runs when the range ends, torch writes through the pointer into
freed memory. Its fast ranges also raise an error where a profiler started while they were open.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from stepscope.record.module_registry import profiler_runs
from stepscope.record.patch import replace

_record_function: Any = torch.autograd.profiler.record_function
# A fifth of the cost of `record_function`; shows as a range of category `cpu_op`.
_Fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", _record_function)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []  # torch's ranges that began under a profiler, outermost first

    def takes_off(self, marked: Any) -> bool:
        """Whether the range was open; it is not any more."""
        if was_open := marked in self.open:
            self.open.remove(marked)
        return was_open


_thread = _Thread()


class Range:
    """A range of ours; nothing while no profiler runs."""

    __slots__ = ("_label", "_marked")

    def __init__(self, label: str) -> None:
        self._label = label
        self._marked: Any = None

    def __enter__(self) -> None:
        if profiler_runs():
            self._marked = _Fast(self._label)
            _thread.open.append(self._marked)
            self._marked.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._marked is not None and _thread.takes_off(self._marked):
            self._marked.__exit__(None, None, None)


def watch_open_ranges() -> list[Callable[[], None]]:
    """Know the program's `record_function` ranges that are open, too; returns what ends that."""
    begin, end = _record_function.__enter__, _record_function.__exit__

    @functools.wraps(begin)
    def enter(region: Any) -> Any:
        if profiler_runs():
            _thread.open.append(region)
        return begin(region)

    @functools.wraps(end)
    def exit(region: Any, *error: Any) -> Any:
        _thread.takes_off(region)
        return end(region, *error)

    return [replace(_record_function, "__enter__", enter), replace(_record_function, "__exit__", exit)]


def end_open_ranges(but: Any = None) -> None:
    """End this thread's ranges before their profiler stops; to end one again does nothing.

    Those of a profiler that has stopped may end while none runs: so before the next one starts.
    """
    _thread.takes_off(but)
    while _thread.open:
        _thread.open.pop().__exit__(None, None, None)
