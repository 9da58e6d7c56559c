"""What runs below calls of compiled functions, from short windows of XLA's profiler.

XLA reports operations only through its profiler, which keeps each execution until it is stopped. So
it runs for a few calls at a time, in windows that are spread over the run. A window begins and ends
between two calls, on the thread of the program; each call in it has a mark with its context. The
profiles are read when the capture is opened, not in the program's process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import tree_util
from jax._src import profiler as jax_profiler
from jax._src.lib import _profiler

from stepscope.record.jax.program_ranges import profiler_sessions
from stepscope.record.patch import ignoring, replace, undo
from stepscope.record.unreplaced import time

MARK = "stepscope.context"
# Members of the capture: when a window began and ended, microseconds after JAX was imported.
NAME = "window-{:012d}-{:012d}.xplane.pb"
MOST_WINDOWS, MOST_BYTES = 16, 16 << 20  # kept; with more, every second one goes
_ENOUGH_CALLS, _ENOUGH_S, _MOST_CALLS = 4, 0.02, 512  # in a window: both of the first two, or the last
_EVERY_S, _RETRY_S = 2.0, 1.0  # between windows, and after the script ran a profiler of its own
# The cost of windows as a share of the run; the first few may come sooner, for short runs.
_SHARE, _FIRST = 0.005, 4
_DUTY = 0.05  # of the run at most: while a window is open, the profiler keeps each execution
_POLL_S, _LEAST_WAIT_S = 0.0005, 5.0  # between looks at results, and for the work of a window's calls
_MOST_FAILURES = 3  # in a row; then no window opens any more
_STARTS = ("ProfilerSession", "start_server")
_NONE = "no execution of compiled operations was recorded"


class ProfilerWindows:
    """Opens and closes windows while a program calls compiled functions.

    Nothing is opened while the program's own profiler or profiler server runs, and where it starts
    one, a window gives way.
    """

    def __init__(self, extension: Any) -> None:
        self._extension = extension
        self._lock = threading.RLock()  # also a signal handler may start a profiler
        self._window: _OpenWindow | None = None
        self._kept: list[tuple[str, int]] = []
        self._every_s, self._recorded, self._failures = _EVERY_S, 0, 0
        self._has_called = self._gives_way = False
        self._began = time.monotonic()
        self._why = "the run ended before its second call of a compiled function"

    def attach(self) -> None:
        """Open the first window at the second call, when JAX has its devices."""
        self._extension.watch_windows(partial(self._guarded, self._begin), self._call_ends)
        self._extension.next_window(0.0)
        # A child must not inherit a session.
        abandon: weakref.WeakMethod[Callable[[], object]] = weakref.WeakMethod(self._abandon)
        os.register_at_fork(before=lambda: (living := abandon()) and living())

    def detach(self) -> None:
        """Close the last window; a note says why there is none."""
        self._extension.next_window(-1.0)
        with self._lock:
            self._close()
        if not self._kept:
            self._extension.note(f"{_NONE}: {self._why}")

    def _call_ends(self, mark: Any, result: Any, compiled: bool) -> None:
        if mark is not self:
            mark.__exit__(None, None, None)
        self._guarded(self._end, result, compiled)

    def _guarded(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Exceptions of ours end the windows; those of the program's signal handlers pass."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            with ignoring(Exception, then=self._give_up):
                return step(*arguments)
        finally:
            self._lock.release()
        return None

    def _begin(self, context: int) -> Any:
        if not self._has_called:
            return self
        if self._window and self._window.is_enough():
            self._close()
        elif not self._window and self._failures < _MOST_FAILURES:
            self._open()
        if not self._window:
            return None
        mark = jax.profiler.TraceAnnotation(f"{MARK} {context}")
        mark.__enter__()
        return mark

    def _end(self, result: Any, compiled: bool) -> None:
        self._has_called = True
        if self._window:
            self._window.call_ended(result, compiled)

    def _open(self) -> None:
        # The server lets others start the program's profiler from outside at any time.
        if any(profiler_sessions()) or getattr(jax_profiler, "_profiler_server", None):
            self._why = "the script ran a profiler of its own"
            self._extension.next_window(_RETRY_S)
            return
        self._gives_way = False
        self._window = _OpenWindow(self._giving_way)
        self._extension.next_window(0.0)

    def _close(self) -> None:
        """Close the window, after the work of its calls, and plan the next one."""
        window = self._window
        if window is None:
            return
        begun = time.monotonic()
        is_complete = self._wait_for(window)
        waited_s = min(time.monotonic() - begun, window.seconds() / max(window.calls, 1))
        if self._window is not window:  # a handler has started a profiler meanwhile
            return
        self._window = None
        profile = window.stop()
        if is_complete and profile and window.calls:
            self._keep(window, profile)
        elif profile == b"" or not is_complete:
            self._failed()
        self._plan(window, waited_s)

    def _wait_for(self, window: _OpenWindow) -> bool:
        """Whether the work of the window's calls is done; in a loop that waits itself, at once."""
        deadline = time.monotonic() + _LEAST_WAIT_S + 2 * window.seconds()
        while not window.is_done():
            if time.monotonic() > deadline or self._gives_way or self._window is not window:
                return False
            time.sleep(_POLL_S)
        return True

    def _keep(self, window: _OpenWindow, profile: bytes) -> None:
        self._recorded += 1
        if len(profile) > MOST_BYTES:
            self._failed(f"the profile of a few calls has {len(profile) >> 20} MiB")
            return
        self._failures = 0
        ended = window.began + window.seconds()
        name = NAME.format(*(round(1e6 * (at - self._began)) for at in (window.began, ended)))
        self._extension.keep_window(name, profile)
        self._kept.append((name, len(profile)))
        if len(self._kept) > MOST_WINDOWS or sum(size for _, size in self._kept) > MOST_BYTES:
            self._thin_out()

    def _thin_out(self) -> None:
        """Keep every second window, and open them half as often: they stay evenly spread."""
        for name, _ in self._kept[1::2]:
            self._extension.drop_window(name)
        self._kept = self._kept[::2]
        self._every_s *= 2

    def _plan(self, window: _OpenWindow, waited_s: float) -> None:
        is_early = self._recorded < _FIRST
        least_s = 0.0 if is_early else max(self._every_s, window.seconds() / _DUTY)
        after_s = max((window.cost_s + waited_s) / _SHARE, least_s, _POLL_S)
        self._extension.next_window(-1.0 if self._failures >= _MOST_FAILURES else after_s)

    def _failed(self, why: str = "the work of calls ended too late, or the profiler failed") -> None:
        self._why = why
        self._failures += 1

    def _give_up(self, error: Exception) -> None:
        self._why, self._failures = f"{type(error).__name__}: {error}", _MOST_FAILURES
        self._extension.next_window(-1.0)
        window, self._window = self._window, None
        if window:
            window.stop()

    def _abandon(self) -> None:
        """Close the window at once, without its profile."""
        self._gives_way = True
        with self._lock:
            window, self._window = self._window, None
            if window:
                window.stop()
                self._extension.next_window(_RETRY_S)

    def _giving_way(self, name: str) -> Callable[..., Any]:
        """The program starts a profiler of its own, and there can be only one."""

        def start(*options: Any) -> Any:
            self._abandon()
            return getattr(_profiler, name)(*options)

        return start


class _OpenWindow:
    """A session of the profiler; `giving_way` replaces what the program starts its own with, by name."""

    def __init__(self, giving_way: Callable[[str], Callable[..., Any]]) -> None:
        self.calls = self._steady = 0
        self.began = self._compiled = time.monotonic()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        make: Any = _profiler.ProfilerSession
        self._restore = [replace(_profiler, name, giving_way(name)) for name in _STARTS]
        self._session: Any = make(options)
        self._results: list[weakref.ref[Any]] = []
        self.cost_s = time.monotonic() - self.began

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def call_ended(self, result: Any, compiled: bool) -> None:
        """Count a call, and remember its result without keeping it alive."""
        self.calls += 1
        self._steady += 1
        if compiled:
            self._steady, self._compiled = 0, time.monotonic()
        arrays = [leaf for leaf in tree_util.tree_leaves(result) if isinstance(leaf, jax.Array)]
        self._results += map(weakref.ref, arrays[-1:])

    def is_enough(self) -> bool:
        is_long = time.monotonic() - self._compiled >= _ENOUGH_S
        return (self._steady >= _ENOUGH_CALLS and is_long) or self.calls >= _MOST_CALLS

    def is_done(self) -> bool:
        """Whether the work of all calls is done, as far as their results still exist."""
        self._results = [result for result in self._results if _is_pending(result())]
        return not self._results

    def stop(self) -> bytes:
        """End the session: its profile, empty where it failed."""
        begun = time.monotonic()
        undo(self._restore)
        session, self._session = self._session, None
        profile = b""
        with ignoring(Exception):  # of XLA, of any kind: another session runs that we could not know of
            profile = session.stop()
        self.cost_s += time.monotonic() - begun
        return profile


def _is_pending(array: Any) -> bool:
    with ignoring(Exception):  # computing it failed, or it was donated meanwhile
        return not (array is None or array.is_deleted() or array.is_ready())
    return False
