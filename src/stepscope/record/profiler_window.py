"""Consecutive training steps under torch.profiler, and the trace that it writes."""

import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from stepscope.errors import CaptureError
from stepscope.record import fork_warnings
from stepscope.record.module_registry import profiler_runs
from stepscope.record.options import RecordOptions
from stepscope.record.patch import ignoring, replace
from stepscope.record.process_exit import without_lines
from stepscope.record.ranges import end_open_ranges

_record_function: Any = torch.autograd.profiler.record_function

OTHER_PROFILER = (
    "cannot start torch.profiler: the script runs its own profiler; give that one "
    "on_trace_ready=stepscope.trace_handler() instead of using stepscope run"
)
_Profile: Any = torch.autograd.profiler.profile
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_OF_KINETO = b"External init callback must run in same thread"
_abandoned: list[Any] = []  # torch writes warnings as it deletes a profiler that runs


class ProfilerWindow:
    """Records steps from `first` on, once started, each as a range `ProfilerStep#N`.

    The ranges are ours, named as torch.profiler names its own: its `step()` counts from the
    profiler's start and opens the first range before recording begins. `scripted` is whether a
    model was made by TorchScript, whose operators then name their modules.
    """

    def __init__(
        self,
        options: RecordOptions,
        first: int,
        boundary: Any,
        on_other_profiler: Callable[[], object] = lambda: None,
        scripted: bool = False,
    ) -> None:
        self.boundary = boundary
        self.complete: list[int] = []
        self._next = first
        if profiler_runs():
            raise CaptureError(OTHER_PROFILER)
        self.profiler = torch.profiler.profile(
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stack,
            with_modules=scripted,
        )
        self._range: Any = None
        self._running = False
        self._restore = _watch_profilers(lambda: self._running and on_other_profiler())

    def start(self) -> "ProfilerWindow":
        end_open_ranges()
        with fork_warnings.starting_threads(), _quiet_kineto():
            self.profiler.prepare_trace()
            self._running = True
            self.profiler.start_trace()
        return self

    def begin_step(self) -> None:
        self._range = _record_function(f"ProfilerStep#{self._next}").__enter__()

    def end_step(self) -> None:
        self._range.__exit__(None, None, None)
        self._range = None
        self.complete.append(self._next)
        self._next += 1

    def close(self) -> None:
        """Stop recording; a step that still runs ends too late to be in the trace.

        torch.profiler marks such a range with `"finished": false`.
        """
        self._restore()
        if self._running:
            if profiler_runs():
                end_open_ranges(but=self._range)
                self.profiler.stop_trace()
            else:  # a signal handler of the program raised as torch started, or gave what it has
                self.complete.clear()
            self._running = False
            if self._range is not None:
                self._range.__exit__(None, None, None)

    def abandon(self) -> None:
        """Leave the profiler running, for good: nothing of it can be exported."""
        self._running = False
        self._restore()
        self.complete.clear()
        _abandoned.append(self.profiler)

    def export(self, path: Path) -> None:
        export_trace(self.profiler, path)


def _watch_profilers(notice: Callable[[], object]) -> Callable[[], None]:
    """Call `notice` before another profiler starts; returns what ends that."""
    original = _Profile._prepare_trace

    @functools.wraps(original)
    def prepare(profiler: Any, *args: Any, **kwargs: Any) -> Any:
        notice()
        return original(profiler, *args, **kwargs)

    return replace(_Profile, "_prepare_trace", prepare)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep the profiler's own log off the script's stderr.

    It reads this variable only once. The line that it writes on its first start in a thread other
    than the main one has no level.
    """
    is_main = threading.current_thread() is threading.main_thread()
    is_set = _LOG_LEVEL in os.environ
    os.environ.setdefault(_LOG_LEVEL, "99")
    try:
        with nullcontext() if is_main else without_lines(_OF_KINETO):
            yield
    finally:
        if not is_set:
            os.environ.pop(_LOG_LEVEL, None)


_LAST_BYTES = 64  # of a trace, which show whether it is whole
_PROBE_BYTES = 1 << 16  # more than a nearly full disk may still take
_NOT_WHOLE = "PyTorch could not write the whole trace; is the disk full?"


def export_trace(profiler: Any, path: Path) -> None:
    """Write torch.profiler's JSON, with an error where PyTorch gives none: on a full disk.

    Raises OSError if the file could not be written, with the system's reason where it can be found.
    """
    if str(path).isprintable():
        profiler.export_chrome_trace(str(path))
    else:  # PyTorch takes only names in UTF-8
        with TemporaryDirectory() as folder:
            profiler.export_chrome_trace(f"{folder}/trace.json")
            shutil.move(f"{folder}/trace.json", path)
    if not _is_whole(path):
        _write_as_much(path)
        raise OSError(errno.EIO, _NOT_WHOLE, str(path))


def _is_whole(path: Path) -> bool:
    """Whether there is a file that ends as JSON does."""
    with ignoring(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _LAST_BYTES, 0))
        return file.read(_LAST_BYTES).rstrip()[-1:] in (b"}", b"]")
    return False


def _write_as_much(path: Path) -> None:
    """Write until the system says why it refuses."""
    with path.open("ab", buffering=0) as file:
        file.write(bytes(_PROBE_BYTES))
        file.write(bytes(_PROBE_BYTES))  # what is partly written says nothing, the next does


def profiler_events(profiler: Any) -> Iterator[Any]:
    """All events of a stopped torch.profiler with their typed fields, in no order."""
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        yield event
        pending.extend(event.children)
