"""Keeps Python's warning about a fork silent where the only other threads are there for the recorder.

From 3.12 on Python warns, after a fork, in a process that has more than one thread; torch.profiler starts one
for good. The filter is there from a fork until it has matched, so that no filter of the program comes first.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from stepscope.record.patch import ignoring
from stepscope.record.unreplaced import os

_TASKS = "/proc/self/task"
_NAME = "stepscope-own"  # of the threads of `hidden_thread.cpp`; `stepscope run` names all others "stepscope"
_WARNING = "is multi-threaded, use of"  # CPython, Modules/posixmodule.c, warn_about_fork_with_threads


class _OnlyOurThreads:
    """Stands where a filter has its pattern; matches once."""

    def __init__(self) -> None:
        self.started: set[str] = set()  # tasks
        self._filter: Any = ("ignore", self, DeprecationWarning, None, 0)

    def match(self, text: str) -> bool:
        if _WARNING not in text:
            return False
        self.remove()  # only on a match: else the search for a filter would pass over the next one
        return True

    def install(self) -> None:
        """Before a fork."""
        self.remove()
        tasks = _tasks()
        if len(tasks) > 1 and len([task for task in tasks - self.started if _name(task) != _NAME]) == 1:
            warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]

    def remove(self) -> None:
        with ignoring(ValueError):
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


_ours = _OnlyOurThreads()


@cache
def watch() -> None:
    """Call before the program runs, or before a thread is started."""
    if sys.version_info >= (3, 12) and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_ours.install, after_in_child=_ours.remove)


@contextmanager
def starting_threads() -> Iterator[None]:
    """The threads that start inside are there for the recorder."""
    before = _tasks()
    try:
        yield
    finally:
        _ours.started |= _tasks() - before


def _tasks() -> set[str]:
    with ignoring(OSError):
        return set(os.listdir(_TASKS))
    return set()


def _name(task: str) -> str:
    with ignoring(OSError), open(f"{_TASKS}/{task}/comm") as file:  # noqa: PTH123 (of the system)
        return file.read().strip()
    return ""
