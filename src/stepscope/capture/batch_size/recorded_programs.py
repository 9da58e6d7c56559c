"""The memory steps of a JAX program as a capture, for predictions of other devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.capture.batch_size.request import Request
from stepscope.capture.capture_file import write_capture
from stepscope.capture.jax import MEMBER
from stepscope.capture.jax.jax_window import JaxWindow
from stepscope.capture.manifest import Result, Run, build_manifest
from stepscope.capture.options import RecordOptions
from stepscope.errors import CaptureError

_OPTIONS = RecordOptions(warmup=0, steps=0)
_RUN_IN = 1  # the first step is in progress when recording begins


class RecordedPrograms:
    """One capture, from the step in which recording begins to the step after the last.

    The program's own profiler takes precedence: there is no capture then.
    """

    def __init__(self, request: Request) -> None:
        assert request.capture is not None
        self._command = [request.entry, *request.arguments]
        self._path = Path(request.capture)
        self._window: JaxWindow | None = None
        self._step = 0

    def start(self, step: int) -> None:
        """Begin to record in step number `step`."""
        self._step = step
        try:
            self._window = JaxWindow(_OPTIONS, step + _RUN_IN, None, _RUN_IN)
        except CaptureError:
            self._window = None

    def step_ended(self, outputs: Any, *, is_last: bool) -> None:
        """A call that ends a step has returned; after the last, write what was recorded.

        The step after the last must have begun: its call shows where the last one ends.
        """
        window = self._window
        if window is None:
            return
        if is_last and window.complete:
            self._window = None
            window.close(drain=True)
            if not window.was_preempted:
                self._write(window)
        else:
            window.end_step(outputs)

    def _write(self, window: JaxWindow) -> None:
        steps = list(window.complete)
        result = Result("complete", "recorded", steps[-1] + 1, steps)
        manifest = build_manifest(Run(self._command, _OPTIONS), result, "jax")
        write_capture(self._path, manifest, {"roots": []}, {MEMBER: window.export})
