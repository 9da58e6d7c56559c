"""Decides, at the end of each training step, what to watch and record during the next.

    step      0          1 2 3           4        5 6 7           8 …
              observed   early window    nothing  main window     nothing, all hooks gone

The first step is observed to find the model trees. The early window is kept only until the main one
has a complete step: it is what a script gets that ends before the warm-up has passed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepscope.capture.crossing import OpenRanges
from stepscope.capture.cycle import StepCycle
from stepscope.capture.describe import Json, describe_forest
from stepscope.capture.forest import Forest
from stepscope.capture.loaders import LoaderWatch
from stepscope.capture.optimizers import OptimizerWatch
from stepscope.capture.options import Options
from stepscope.capture.ranges import ModuleRanges
from stepscope.capture.window import Window


@dataclass
class Recording:
    """A window with what is needed to use it."""

    window: Window
    wanted: int
    early: bool
    modules: Json = field(default_factory=lambda: {"roots": []})
    loaders: list[Json] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        """The steps recorded in full."""
        return self.window.complete


class Recorder:
    """Watches the optimizers and model calls of this process and records a few steps.

    Args:
        options: what to record.
        on_complete: called between two steps, once all that was asked for is recorded.
    """

    def __init__(self, options: Options, on_complete: Callable[[Recording], None]) -> None:
        self.cycle = StepCycle()
        self.forest = Forest()
        self.failure: str | None = None
        self._options = options
        self._on_complete = on_complete
        self._running: Recording | None = None
        self._early: Recording | None = None
        self._main: Recording | None = None
        self._ranges = ModuleRanges(self.forest)
        self._open_ranges = OpenRanges()
        self._watch = OptimizerWatch(self._stepped)
        self._loader_watch = LoaderWatch()
        self._ranges.install()
        _close_in_forked_children(self)

    def start(self) -> None:
        """Begin to record here and now, where no warm-up is wanted."""
        if self._options.warmup == 0:
            self._main = self._open(first=0, wanted=self._options.steps, early=False)

    def close(self) -> None:
        """Stop all recording and leave torch as it was."""
        try:
            self._close_window()
        except Exception as error:
            self._note(error)
        finally:
            self.detach()

    def detach(self) -> None:
        """Remove every hook."""
        self._ranges.remove()
        self._open_ranges.close()
        self._watch.close()
        self._loader_watch.remove()

    def best(self) -> Recording | None:
        """The recording to keep: the main one if it has a complete step, else the early one."""
        kept = (recording for recording in (self._main, self._early) if recording)
        return next((recording for recording in kept if recording.steps), None)

    @property
    def problem(self) -> str | None:
        """What went wrong on our side, if anything did."""
        return self.failure or self._ranges.failure

    def _stepped(self, optimizer: Any) -> None:
        """Training must go on whatever happens to us."""
        try:
            self._advance(optimizer)
        except Exception as error:
            self._note(error)
            self.close()

    def _note(self, error: Exception) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _advance(self, optimizer: Any) -> None:
        ends_step = self.cycle.ends_step(optimizer)
        if self._running and self._running.window.anchor not in (None, self.cycle.anchor):
            self._forget()
        if ends_step:
            self._end_step(self.cycle.steps)

    def _end_step(self, done: int) -> None:
        warmup = self._options.warmup
        if self._running:
            self._end_recorded_step(self._running)
        if self._main and not self._running:
            self.detach()
            self._on_complete(self._main)
            self._let_go()
        elif self._running or self._open_ranges.are_left:
            return
        elif done >= warmup:
            self._main = self._open(done, self._options.steps, early=False)
        elif self._early is None:
            self._early = self._open(done, min(self._options.steps, warmup - done), early=True)

    def _end_recorded_step(self, recording: Recording) -> None:
        recording.window.end_step()
        if len(recording.steps) == recording.wanted:
            self._close_window()
        else:
            recording.window.begin_step()

    def _open(self, first: int, wanted: int, *, early: bool) -> Recording:
        self.forest.settle()
        self._ranges.install()
        window = Window(self._options, first, self.cycle.anchor)
        window.begin_step()
        self._open_ranges.profiler_starts()
        self._running = Recording(window, wanted, early)
        return self._running

    def _close_window(self) -> None:
        recording, self._running = self._running, None
        if recording:
            self._ranges.remove()
            self._open_ranges.profiler_stopped()
            recording.window.close()
            recording.modules = describe_forest(self.forest)
            recording.loaders = self._loader_watch.describe()

    def _let_go(self) -> None:
        """The run may go on for days: keep neither its models nor the recordings alive."""
        self._early = self._main = None
        self.forest.clear()

    def _forget(self) -> None:
        """Another optimizer turned out to end the step, so what was recorded were not steps."""
        self._close_window()
        self._early = self._main = None
        self._ranges.install()


def _close_in_forked_children(recorder: Recorder) -> None:
    """Data loader workers do not record."""
    reference = weakref.ref(recorder)

    def detach() -> None:
        if here := reference():
            here.detach()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=detach)
