"""Consecutive training steps under JAX's profiler; the program runs at most one step ahead."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import jax
from jax._src import array as jax_array
from jax._src.lib import _profiler

from stepscope.errors import CaptureError
from stepscope.record.jax import OTHER_PROFILER
from stepscope.record.jax.jax_step_detector import arrays_in
from stepscope.record.jax.program_ranges import LibraryRanges, profiler_sessions, watch_waits
from stepscope.record.options import RecordOptions
from stepscope.record.patch import replace, undo
from stepscope.record.unreplaced import time

MARK = "stepscope.step"
RUN_IN = 2  # steps: see `JaxWindow`


class JaxWindow:
    """Records steps from `first` on, once started; the call that begins a step holds a mark `stepscope.step`.

    The mark carries the number of the step. The steps before `first` are the run-in: the step in
    which recording begins, and the step whose work the next one finds in progress. The session is
    XLA's own; `jax.profiler.start_trace` stays available to the program. `closest_mark` is the mark
    whose time is known best, as `mark` of `samples.json`.
    """

    def __init__(self, options: RecordOptions, first: int, boundary: object, run_in: int = RUN_IN) -> None:
        self.boundary = boundary
        self.complete: list[int] = []
        self.early: list[int] = []
        self.was_preempted = False
        self.closest_mark: dict[str, Any] = {}
        self._first, self._next = first, first - run_in
        self._is_whole = run_in == 0
        self._space, self._options = b"", _options(options)
        self._ahead, self._session = RunAhead(), None
        self._restore: list[Callable[[], None]] = []
        if any(profiler_sessions()):
            raise CaptureError(OTHER_PROFILER)

    def start(self) -> None:
        self._restore.append(LibraryRanges().remove)
        self._restore += watch_waits(_begin_wait, _end_wait, transfers=False)[0]
        self._session = _profiler.ProfilerSession(self._options)
        self._restore.append(replace(_profiler, "ProfilerSession", self._for_the_program))
        self._mark()

    @property
    def is_past_run_in(self) -> bool:
        """Whether the step that has begun is to be kept."""
        return self._is_whole and self._next >= self._first

    def end_step(self, outputs: Any) -> None:
        """The previous training step was over when the call that just returned began."""
        self._ahead.step_ended(outputs)
        if self._is_whole:
            (self.complete if self._next >= self._first else self.early).append(self._next)
        self._is_whole = True
        self._next += 1
        self._mark()

    def close(self, *, drain: bool) -> None:
        """Stop recording; with `drain`, after the steps' work is done."""
        if self._session is None:
            return
        if drain:
            self._ahead.drain()
        undo(self._restore)
        session, self._session = self._session, None
        self._space = session.stop()

    def export(self, path: Path) -> None:
        path.write_bytes(self._space)

    def _mark(self) -> None:
        before = time.time_ns()
        with jax.profiler.TraceAnnotation(MARK, step_num=self._next):
            middle = time.time_ns()
        error = middle - before
        if error < self.closest_mark.get("error_ns", inf):
            name = f"{MARK}#step_num={self._next}"
            self.closest_mark = {"name": name, "unix_ns": middle, "error_ns": error}

    def _for_the_program(self, *options: Any) -> Any:
        """The program starts a profiler of its own, and there can be only one."""
        self.was_preempted = True
        self.close(drain=False)
        return _profiler.ProfilerSession(*options)


def _begin_wait(name: str) -> Any:
    """XLA marks only some waits of the program: none for an array that several devices hold."""
    wait = jax.profiler.TraceAnnotation(f"stepscope.{name}")
    wait.__enter__()
    return wait


def _end_wait(wait: Any) -> None:
    wait.__exit__(None, None, None)


def require_session() -> None:
    """Raise an error if this version of JAX has no session of its profiler as it is used here."""
    if not (profiler_sessions() and hasattr(_profiler, "ProfilerSession")):
        raise CaptureError("it has no known session of its profiler")


def _options(options: RecordOptions) -> Any:
    result = jax.profiler.ProfileOptions()
    result.python_tracer_level = int(options.stack)
    return result


_KEPT = 4  # arrays of a step; some may be donated
_ARRAY: Any = getattr(jax_array, "ArrayImpl", None)
# As it is before waits of the program are watched: ours are none of the program's.
_BLOCK = getattr(_ARRAY, "block_until_ready", None)


class RunAhead:
    """Waits, at the end of each step, for the results of the previous step.

    A loop that reads nothing back gets dozens of steps ahead of its devices, and the time between two calls
    is then unrelated to the length of a step. If each step waits for the work of the previous step, the next
    batch is still loaded while the device computes, and a step takes as long as it does on average.
    """

    def __init__(self) -> None:
        self._last: list[Any] = []

    def step_ended(self, outputs: Any) -> None:
        """Wait for the previous step; for this one if all results of that were donated."""
        if self._last and not _wait(self._last):
            _wait(_smallest(outputs))
        self._last = _smallest(outputs)

    def drain(self) -> None:
        _wait(self._last)
        self._last = []


def catch_up(outputs: Any) -> None:
    """Wait for all requested work; `outputs` is the last of it."""
    _wait(_smallest(outputs))


def _smallest(outputs: Any) -> list[Any]:
    """A few small arrays: all outputs of a program are ready at once, and large ones may be donated."""
    return sorted(arrays_in(outputs), key=lambda array: array.nbytes)[:_KEPT]


def _wait(arrays: list[Any]) -> bool:
    """Wait for the first array that still exists; False if none does."""
    for array in arrays:
        if not array.is_deleted():
            _BLOCK(array) if _BLOCK and isinstance(array, _ARRAY) else array.block_until_ready()
            return True
    return False
