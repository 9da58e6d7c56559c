"""Counts what XLA compiles, and for which functions of the program.

JAX reports a compilation when it has ended, inside the call that caused it. The call of a compiled
function is then on the stack, with the function that it was made from (jax/_src/pjit.py,
`cache_miss`); in a version without this name, compilations are counted, but no functions are known.
"""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import jax
from jax import monitoring
from jax._src import monitoring as private_monitoring

from stepscope.record.unreplaced import time

_COMPILES, _COMPILED = "/jax/core/compile/", "/jax/core/compile/backend_compile_duration"  # tracing, lowering
_CALL, _CALLED = "cache_miss", "fun"
OF_JAX = ("jax", "jaxlib")
_FOLDER = str(Path(jax.__file__).parent) + os.sep
LEAST_TIMES = 5  # a few variants of a function, of the first batch and the last, are usual
LEAST_SHARE = 0.1  # of the time since counting began


class CompilationCounter:
    """Counts the programs that XLA compiles, until closed: they show that warm-up is not over."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        # Called after each part, with its seconds, and whether it was the last: a part may be in another one.
        on_part: Callable[[float, bool], None] = lambda seconds, is_last: None,
    ) -> None:
        self.count = 0
        self._on_part = on_part
        self._clock, self._begun = clock, clock()
        self._functions: dict[str, tuple[int, float]] = {}  # how often, and seconds
        self._is_closed = False
        self._listener = self._on_event  # one object, which can be found again
        monitoring.register_event_duration_secs_listener(self._listener)

    def close(self) -> None:
        """Stop counting; where JAX cannot forget a listener, it does nothing."""
        if not self._is_closed:
            unregister_duration_listener(self._listener)
        self._is_closed = True

    @property
    def often(self) -> str | None:
        """The function that is compiled again and again, in words; None if there is none."""
        spent = max(self._functions.items(), key=lambda item: item[1][1], default=("", (0, 0.0)))
        name, (times, seconds) = spent
        elapsed = self._clock() - self._begun
        if times < LEAST_TIMES or seconds < LEAST_SHARE * elapsed:
            return None
        return (
            f"XLA compiled {name} {times} times, "
            f"{seconds:.3g} of {elapsed:.3g} s: the shapes of its arguments or its static "
            "arguments change, or it is created again; stepscope run --contexts shows which"
        )

    def _on_event(self, event: str, duration: float = 0.0, **about: Any) -> None:
        if self._is_closed or not event.startswith(_COMPILES):
            return
        self._on_part(duration, event == _COMPILED)
        if event != _COMPILED:
            return
        self.count += 1
        if name := _compiling(sys._getframe(1)):
            times, seconds = self._functions.get(name, (0, 0.0))
            self._functions[name] = times + 1, seconds + duration


def called_from_python(frame: FrameType | None) -> Any:
    """The function of the program whose call compiles or runs from Python; None if none does."""
    while frame and not frame.f_code.co_name.endswith(_CALL):
        frame = frame.f_back
    function = frame.f_locals.get(_CALLED) if frame and frame.f_code.co_name == _CALL else None
    module = getattr(function, "__module__", None)
    return function if module and module.partition(".")[0] not in OF_JAX else None


def _compiling(frame: FrameType | None) -> str | None:
    """The function of the program that is being compiled, with its line; None if unknown."""
    if (function := called_from_python(frame)) is None:
        return None
    site = site_of(function, "a function")
    return f"{site.name} ({Path(site.file).name}:{site.line})" if site.file else site.name


class FunctionSite(NamedTuple):
    """A function and where it is defined; `file` is empty for functions of JAX."""

    name: str
    file: str = ""
    line: int = 0


def site_of(function: Any, unnamed: str = "compiled") -> FunctionSite:
    """The name and definition of what a compiled function was made from.

    Example:
        >>> site_of(jax.jit(max)).name
        'max'
    """
    name: str = getattr(function, "__qualname__", None) or unnamed
    short = name.rpartition("<locals>.")[2]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(_FOLDER):
        return FunctionSite(short)
    return FunctionSite(short, code.co_filename, code.co_firstlineno)


_UNREGISTER = (
    "unregister_event_duration_listener",
    "_unregister_event_duration_listener_by_callback",  # before JAX 0.9
)


def unregister_duration_listener(listener: Callable[..., None]) -> None:
    """Make JAX forget a listener of durations, where it can."""
    if unregister := next((name for name in _UNREGISTER if hasattr(private_monitoring, name)), None):
        getattr(private_monitoring, unregister)(listener)
