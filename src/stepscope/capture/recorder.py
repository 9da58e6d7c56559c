"""Decides, at the end of each step, what to watch and record during the next.

    step      0          1 2 3           4        5 6 7           8 …
              observed   early window    nothing  main window     nothing, all hooks gone

The first step is observed to find the model trees. The early window is kept only until the main one
has a complete step: it is what a script gets that ends before the warm-up has passed.

Steps end with optimizers. Until one has stepped they are turns of the program's loop (`turns`),
which are given up whenever training begins, and for turns of a larger loop when that comes round.
While either may still come, there is no early window, and the main one is kept but not the end.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.capture.crossing import OpenRanges
from stepscope.capture.cycle import Kind, StepCycle
from stepscope.capture.describe import Json, describe_forest
from stepscope.capture.forest import Forest
from stepscope.capture.loaders import LoaderWatch
from stepscope.capture.optimizers import OptimizerWatch
from stepscope.capture.options import Options
from stepscope.capture.ranges import ModuleRanges
from stepscope.capture.turns import TurnWatch
from stepscope.capture.window import Window


@dataclass
class Recording:
    """A window with what is needed to use it."""

    window: Window
    wanted: int
    early: bool
    modules: Json = field(default_factory=lambda: {"roots": []})
    loaders: list[Json] = field(default_factory=list)
    member: str = "trace.json"

    @property
    def steps(self) -> list[int]:
        """The steps recorded in full."""
        return self.window.complete

    def export(self, path: Path) -> None:
        """Write what the profiler recorded to `path`."""
        self.window.export(path)


class Recorder:
    """Watches the optimizers and model calls of this process and records a few steps.

    Args:
        options: what to record.
        on_complete: called between two steps, once all that was asked for is recorded.
        on_resume: called where the program begins to train after that.
        only_training: whether nothing but an optimizer ends a step.
    """

    framework = "pytorch"
    why_no_steps = "no optimizer stepped in this process, and no loop without one came round"

    def __init__(
        self,
        options: Options,
        on_complete: Callable[[Recording], None],
        on_resume: Callable[[], None] = lambda: None,
        only_training: bool = False,
    ) -> None:
        self.cycle = StepCycle()
        self.forest = Forest()
        self.failure: str | None = None
        self.is_over = False
        self._options = options
        self._on_complete, self._on_resume = on_complete, on_resume
        self._running: Recording | None = None
        self._early: Recording | None = None
        self._main: Recording | None = None
        self._ranges = ModuleRanges(self.forest)
        self._watch = OptimizerWatch(self._stepped)
        self._attach()
        self._turns = TurnWatch(
            self.cycle, self._ranges, self._loader_watch, self._may_train, self._come_round
        )
        if only_training:
            self._turns.close()
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
        if best := self.best():
            self.cycle.anchor = best.window.anchor

    def detach(self) -> None:
        """Remove every hook."""
        self._leave_the_loop()
        self._watch.close()

    def best(self) -> Recording | None:
        """The recording to keep: the main one if it has a complete step, else the early one."""
        kept = (recording for recording in (self._main, self._early) if recording)
        return next((recording for recording in kept if recording.steps), None)

    @property
    def problem(self) -> str | None:
        """What went wrong on our side, if anything did."""
        return self.failure or self._ranges.failure

    def _attach(self) -> None:
        self._open_ranges = OpenRanges()
        self._loader_watch = LoaderWatch()
        self._ranges.install()

    def _leave_the_loop(self) -> None:
        """Remove every hook but those of the optimizers."""
        self._turns.close()
        self._ranges.remove()
        self._open_ranges.close()
        self._loader_watch.remove()

    def _may_train(self) -> bool:
        return self._watch.has_seen_one

    def _stepped(self, optimizer: Any) -> None:
        self._come_round(optimizer, Kind.OPTIMIZER)

    def _come_round(self, thing: object, kind: Kind) -> None:
        """The program must go on whatever happens to us."""
        try:
            self._advance(thing, kind)
        except Exception as error:
            self._note(error)
            self.close()

    def _note(self, error: Exception) -> None:
        self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _advance(self, thing: object, kind: Kind) -> None:
        ends_step = self.cycle.ends_step(thing, kind)
        if self.is_over:
            self._resume()
            return
        if kind is Kind.OPTIMIZER and self._turns.is_open:
            self._begin_training()
        recording = self._running or self._main
        if recording and recording.window.anchor not in (None, self.cycle.anchor):
            self._forget()
        if ends_step:
            self._end_step(self.cycle.steps)

    def _end_step(self, done: int) -> None:
        warmup = self._options.warmup
        if self._running:
            self._end_recorded_step(self._running)
        if self._main and not self._running:
            if self._is_sure():
                self._complete(self._main)
        elif self._running or self._open_ranges.are_left:
            return
        elif done >= warmup:
            self._main = self._open(done, self._options.steps, early=False)
        elif self._early is None and self._is_sure():
            self._early = self._open(done, min(self._options.steps, warmup - done), early=True)

    def _end_recorded_step(self, recording: Recording) -> None:
        recording.window.end_step()
        recording.window.anchor = self.cycle.anchor
        if len(recording.steps) == recording.wanted:
            self._close_window()
        else:
            recording.window.begin_step()

    def _is_sure(self) -> bool:
        """Whether what ends a step now will go on to do so."""
        return self.cycle.is_sure and not (self._turns.is_open and self._may_train())

    def _complete(self, recording: Recording) -> None:
        self.is_over = True
        if self._turns.is_open:
            self._leave_the_loop()  # an optimizer may step yet
        else:
            self.detach()
        self._on_complete(recording)
        self._let_go()

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
            if not self._turns.is_open:
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
        """Something else turned out to end the step, so what was recorded were not steps.

        Turns of a smaller loop are kept: they are better than nothing.
        """
        self._close_window()
        self._early = self.best() if self._turns.is_open else None
        self._main = None
        self._ranges.install()

    def _begin_training(self) -> None:
        """An optimizer steps: from now on nothing else ends a step, and no turn has been one."""
        self._turns.close()
        if self._running and self._running.window.anchor is None:
            return  # its first step has not ended yet, and this one ends it
        self._close_window()
        self._early = self._main = None
        self._ranges.install()

    def _resume(self) -> None:
        """Training begins after turns of another loop were recorded: the next step is observed."""
        self.is_over = False
        self._attach()
        self._on_resume()


def _close_in_forked_children(recorder: Recorder) -> None:
    """Data loader workers do not record."""
    reference = weakref.ref(recorder)

    def detach() -> None:
        if here := reference():
            here.detach()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=detach)
