"""Consecutive training steps under torch.profiler."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepscope.capture.module_registry import profiler_runs
from stepscope.capture.options import RecordOptions
from stepscope.errors import CaptureError

_record_function: Any = torch.autograd.profiler.record_function


class ProfilerWindow:
    """Records steps from `first` on, each as a range `ProfilerStep#N`.

    The ranges are ours, named as torch.profiler names its own: its `step()` counts from the
    profiler's start and opens the first range before recording begins.
    """

    def __init__(self, options: RecordOptions, first: int, boundary: Any) -> None:
        self.boundary = boundary
        self.complete: list[int] = []
        self._next = first
        if profiler_runs():
            raise CaptureError(
                "cannot start torch.profiler: the script runs its own profiler; give that one "
                "on_trace_ready=stepscope.trace_handler() instead of using stepscope run"
            )
        self._profiler = torch.profiler.profile(
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=options.stack,
        )
        with _quiet_kineto():
            self._profiler.prepare_trace()
        self._profiler.start_trace()
        self._running = True
        self._range: Any = None

    @property
    def profiler(self) -> Any:
        """The running torch.profiler."""
        return self._profiler

    def begin_step(self) -> None:
        """A training step begins."""
        self._range = _record_function(f"ProfilerStep#{self._next}")
        self._range.__enter__()

    def end_step(self) -> None:
        """The current training step is over."""
        self._range.__exit__(None, None, None)
        self._range = None
        self.complete.append(self._next)
        self._next += 1

    def close(self) -> None:
        """Stop recording; a step that still runs ends too late to be in the trace.

        torch.profiler marks such a range with `"finished": false`.
        """
        if self._running:
            self._running = False
            self._profiler.stop_trace()
            if self._range is not None:
                self._range.__exit__(None, None, None)

    def export(self, path: Path) -> None:
        """Write torch.profiler's JSON to `path`."""
        self._profiler.export_chrome_trace(str(path))


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep the profiler's own log off the script's stderr; it reads this variable only once."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "99"
    try:
        yield
    finally:
        del os.environ[name]
