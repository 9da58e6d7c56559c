"""Decides, at each return of the function that trains, what to record of a JAX program.

    step      0 (compiles)  1 2          3 4      5 6 7         8           9 …
                            not watched  runs in  main window   ends it     nothing, no hook

Whenever another program has been compiled, the warm-up begins anew. The first two steps of a window
are not kept: what they run was asked for before the recording began, or before the loop was kept
from running ahead.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.capture.jax.calls import CallWatch
from stepscope.capture.jax.compilations import Compilations
from stepscope.capture.jax.cycle import CallCycle
from stepscope.capture.jax.run_ahead import catch_up
from stepscope.capture.jax.window import MEMBER, RUN_IN, TAKEN, Window
from stepscope.capture.options import Options
from stepscope.errors import CaptureError

Json = dict[str, Any]
_DOUBT = 20  # more steps to let pass where a function may be no training step
_PATIENCE = 100  # steps after which a program that never stops compiling is recorded all the same


@dataclass
class JaxRecording:
    """A window with what is needed to use it."""

    window: Window
    compiled: int
    early: bool = False
    modules: Json = field(default_factory=lambda: {"roots": []})
    loaders: list[Json] = field(default_factory=list)
    member: str = MEMBER

    @property
    def steps(self) -> list[int]:
        """The steps recorded in full."""
        return self.window.complete

    def export(self, path: Path) -> None:
        """Write what the profiler recorded to `path`."""
        self.window.export(path)


class JaxRecorder:
    """Watches the compiled functions of this process and records a few training steps.

    Args:
        options: what to record.
        on_complete: called between two steps, once all that was asked for is recorded.

    Raises:
        CaptureError: this JAX is too old.
    """

    framework = "jax"
    why_no_steps = "no function under jax.jit was called over and over in this process"

    def __init__(self, options: Options, on_complete: Callable[[JaxRecording], None]) -> None:
        self.cycle = CallCycle()
        self.problem: str | None = None
        self._options = options
        self._on_complete = on_complete
        self._running: JaxRecording | None = None
        self._main: JaxRecording | None = None
        self._warm = 0
        self._compiled: int | None = None
        self._compilations = Compilations()
        self._watch = CallWatch(self._returned)
        _close_in_forked_children(self)

    def start(self) -> None:
        """Begin to record here and now, where no warm-up is wanted."""
        if self._options.warmup == 0:
            self._main = self._open(0, run_in=0)

    def close(self) -> None:
        """Stop all recording and leave JAX as it was."""
        try:
            self._close_window(drain=False)
        except Exception as error:
            self._note(error)
        finally:
            self.detach()

    def detach(self) -> None:
        """Remove every hook."""
        self._watch.close()
        self._compilations.close()

    def best(self) -> JaxRecording | None:
        """The recording, if it has a complete step."""
        return self._main if self._main and self._main.steps else None

    def _returned(self, name: str, inputs: Any, outputs: Any) -> None:
        """Training must go on whatever happens to us."""
        try:
            if self.cycle.ends_step(name, inputs, outputs):
                self._end_step(self.cycle.steps, outputs)
        except Exception as error:
            self._note(error)
            self.close()

    def _note(self, error: Exception) -> None:
        named = "" if isinstance(error, CaptureError) else f"{type(error).__name__}: "
        self.problem = self.problem or f"{named}{error}"

    def _end_step(self, done: int, outputs: Any) -> None:
        self._count_warm_steps()
        if self._running:
            self._end_recorded_step(self._running, outputs)
        if self._main and not self._running:
            self.detach()
            self._on_complete(self._main)
            self._main = None
        elif self._is_warm(done):
            catch_up(outputs)
            self._main = self._open(done + RUN_IN)

    def _count_warm_steps(self) -> None:
        compiled = self._compilations.count
        fresh = self._compiled not in (None, compiled)
        self._warm = 0 if fresh else self._warm + 1
        self._compiled = compiled

    def _is_warm(self, done: int) -> bool:
        """Whether the window opens: what runs in belongs to the warm-up."""
        if self._main:
            return False
        wanted = self._options.warmup - RUN_IN + (0 if self.cycle.is_sure else _DOUBT)
        return self._warm >= wanted or done >= wanted + _PATIENCE

    def _end_recorded_step(self, recording: JaxRecording, outputs: Any) -> None:
        window = recording.window
        if window.gave_way:
            raise CaptureError(TAKEN)
        if window.anchor not in (None, self.cycle.anchor) or self._spoilt(recording):
            self._forget()
            return
        if len(recording.steps) == self._options.steps:
            # The call that ended the last step has returned by now: it is recorded, with its start.
            self._close_window(drain=True)
        else:
            window.end_step(outputs)

    def _spoilt(self, recording: JaxRecording) -> bool:
        """Whether something was compiled meanwhile, in a program that does stop to compile."""
        stops = self._options.warmup > 0 and self.cycle.steps < _PATIENCE
        return stops and recording.compiled != self._compiled

    def _open(self, first: int, run_in: int = RUN_IN) -> JaxRecording:
        window = Window(self._options, first, self.cycle.anchor, run_in)
        self._running = JaxRecording(window, self._compilations.count)
        return self._running

    def _close_window(self, *, drain: bool) -> None:
        recording, self._running = self._running, None
        if recording:
            recording.window.close(drain=drain)

    def _forget(self) -> None:
        """What was recorded were no steps, or not those of a program that has warmed up."""
        self._close_window(drain=False)
        self._main = None


def _close_in_forked_children(recorder: JaxRecorder) -> None:
    """Workers that the program forks do not record."""
    reference = weakref.ref(recorder)

    def detach() -> None:
        if here := reference():
            here.detach()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=detach)
