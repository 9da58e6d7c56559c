"""Timers that a script sets by hand around the stages of its steps.

A timer measures the CPU time of its thread, so that other processes do not count; with
STYLE_CLOCK=elapsed, elapsed time, where other threads do the work. It leaves out what timers inside
of it measure. The rest of a step is `other`.
"""

import atexit
import functools
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS = int(os.environ.get("STYLE_STEPS", "90"))
_clock = time.perf_counter if os.environ.get("STYLE_CLOCK") == "elapsed" else time.thread_time

_steps: list[dict[str, float]] = []
_current: dict[str, float] = {}
_inside: list[float] = []  # time of timers within each open one
_begun = _clock()


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """The time inside belongs to a stage."""
    begun = _clock()
    _inside.append(0.0)
    try:
        yield
    finally:
        spent = _clock() - begun
        _current[stage] = _current.get(stage, 0.0) + spent - _inside.pop()
        if _inside:
            _inside[-1] += spent


def time_calls(holder: Any, name: str, stage: str) -> None:
    """Time every call of an attribute of an object, a class or a module."""
    original: Callable[..., Any] = getattr(holder, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with timed(stage):
            return original(*args, **kwargs)

    setattr(holder, name, call)


def end_step() -> None:
    """A step is over."""
    global _begun
    now = _clock()
    _current["other"] = now - _begun - sum(_current.values())
    _steps.append({stage: 1e3 * spent for stage, spent in _current.items()})
    _current.clear()
    _begun = _clock()


def _write() -> None:
    if path := os.environ.get("STYLE_TIMES"):
        Path(path).write_text(json.dumps(_steps))


atexit.register(_write)
