"""Which thread's steps are recorded: torch.profiler records one, and has to be stopped in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stepscope.capture.step_detector import Kind


class TrainingThread:
    """The thread in which an optimizer steps first; until one does, where something repeats first.

    Steps of other threads would cut those of this one, and a profiler that another thread stops
    crashes torch (2.13).
    """

    def __init__(self) -> None:
        self._ident: int | None = None
        self._trains = False
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @contextmanager
    def turn(self, kind: Kind, *, is_recording: bool) -> Iterator[bool]:
        """Whether an event of the current thread counts; other threads wait for none.

        Args:
            kind: of the event.
            is_recording: whether a profiler runs, which ties the recording to its thread.
        """
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield self._takes(kind, is_recording)
        finally:
            self._lock.release()

    def is_current(self) -> bool:
        """Whether this is the thread; True before there is one."""
        return self._ident in (None, threading.get_ident())

    def at_its_end(self, action: Callable[[], object]) -> None:
        """Run `action` as the current thread ends, if it is still this one and not the main one."""
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main and not hasattr(self._of_thread, "guard"):
            self._of_thread.guard = _Guard(lambda: self.is_current() and action())

    def _takes(self, kind: Kind, is_recording: bool) -> bool:
        trains = kind >= Kind.OPTIMIZER
        if not self.is_current() and (is_recording or self._trains or not trains):
            return False
        self._ident = threading.get_ident()
        self._trains = self._trains or trains
        return True


class _Guard:
    """Python deletes what is local to a thread in that thread, as it ends."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def __del__(self) -> None:
        with suppress(Exception):
            self._action()
