"""What is read at the end of each step: clocks and counters, each as a sum since the run began."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from stepscope.record.call_sites import LIBRARIES, user_frames
from stepscope.record.patch import AfterImport, replace, undo
from stepscope.record.unreplaced import os, time

# In ns since the run began, of the thread that trains: collectives that Python waits for, garbage
# collection, compilation, CPU time, and how long it could run but others had the cores.
Sums = tuple[int, int, int, int, int]
_DEEPEST = 200  # callers of a compiler that are looked at, until one is the program's


class StepClocks:
    """Reads `Sums` on the thread that makes it; `compiled` gets the line and ns of each compilation."""

    def __init__(self, compiled: Callable[[FrameType | None, int], None]) -> None:
        self._compiled = compiled
        self._gc_ns = self._compile_ns = self._collective_ns = self._gc_since_ns = 0
        self._compiling_ns: int | None = None
        self._thread = threading.get_ident()
        self._queue: int | None = None
        with suppress(OSError):
            self._queue = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        gc.callbacks.append(self._collected)
        self._restore: list[Callable[[], object]] = [self._leave]

    def detach(self) -> None:
        undo(self._restore)

    def _leave(self) -> None:
        with suppress(ValueError):  # the program cleared them
            gc.callbacks.remove(self._collected)

    def read(self) -> Sums:
        cpu, queued = time.thread_time_ns(), self._queued_ns()
        return self._collective_ns, self._gc_ns, self._compile_ns, cpu, queued

    def _queued_ns(self) -> int:
        """The second field of `schedstat`; Linux, Documentation/scheduler/sched-stats.rst."""
        if self._queue is None:
            return 0
        try:
            return int(os.pread(self._queue, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):
            self._queue = None  # the program closed it, and may have another file of this number
            return 0

    def _is_elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def _collected(self, phase: str, about: dict[str, int]) -> None:
        """Python calls this around each garbage collection."""
        if self._is_elsewhere():
            return
        if phase == "start":
            self._gc_since_ns = time.perf_counter_ns()
        elif self._gc_since_ns:
            self._gc_ns += time.perf_counter_ns() - self._gc_since_ns

    # -- compilation and collectives

    def follow_torch(self) -> None:
        """Torch has been imported."""
        watch = AfterImport("torch._dynamo.callback", self._follow_compiler)
        self._restore.append(watch.remove)
        watch.install()
        with suppress(Exception):  # a build without torch.distributed
            from torch._C import _distributed_c10d as c10d

            work: Any = c10d.Work
            self._restore.append(replace(work, "wait", self._waited(work.wait)))

    def _follow_compiler(self) -> None:
        with suppress(Exception):  # a version that has no such callbacks
            handler: Any = sys.modules["torch._dynamo.callback"].callback_handler
            handler.register_start_callback(self._compilation_begins)
            self._restore.append(lambda: handler.remove_start_callback(self._compilation_begins))
            handler.register_end_callback(self._compilation_ended)
            self._restore.append(lambda: handler.remove_end_callback(self._compilation_ended))

    def _compilation_begins(self, about: object) -> None:
        self._compiling_ns = None if self._is_elsewhere() else time.perf_counter_ns()

    def _compilation_ended(self, about: object) -> None:
        begun, self._compiling_ns = self._compiling_ns, None
        if begun is not None:
            self.add_compilation(sys._getframe(1), time.perf_counter_ns() - begun)

    def add_compilation(self, frame: FrameType | None, spent_ns: int) -> None:
        self._compile_ns += spent_ns
        callers = user_frames(frame, _DEEPEST)
        own = (caller for caller in callers if not caller.f_code.co_filename.startswith(LIBRARIES))
        self._compiled(next(own, None), spent_ns)

    def _waited(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere():
                return original(*args, **kwargs)
            begun = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._collective_ns += time.perf_counter_ns() - begun

        return wait


def works_on_device() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())
