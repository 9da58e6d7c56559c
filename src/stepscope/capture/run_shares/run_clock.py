"""Follows the activities of a whole run and publishes its shares now and then."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from stepscope.capture.run_shares.activity_log import ActivityLog
from stepscope.capture.run_shares.run_shares import describe
from stepscope.capture.run_shares.trainings import unrecorded_training

if TYPE_CHECKING:
    from stepscope.capture.run_shares.activity_hooks import ActivityHooks

_GROWTH = 0.5  # a run that is killed has lost at most the last third of its shares
_SHORTEST_NS = 1_000_000_000
_MOST_COST = 0.01


class RunClock:
    """The shares of a run that begins now.

    Args:
        step_every: optimizer steps per step.
    """

    def __init__(self, step_every: int = 1) -> None:
        self.log = ActivityLog()
        self._step_every = step_every
        self._hooks: ActivityHooks | None = None

    def attach(self) -> None:
        """Torch has been imported: watch the activities of this thread."""
        from stepscope.capture.run_shares.activity_hooks import ActivityHooks

        self.log.torch_imported_ns = self.log.now() - self.log.begun_ns
        self._hooks = ActivityHooks(self.log)

    def detach(self) -> None:
        """Leave torch as it was."""
        if self._hooks:
            self._hooks.detach()

    def mark_activities(self, marks: bool) -> None:
        """Whether activities are ranges in the trace that is being recorded."""
        if marks:
            self.log.recorded_ns = self.log.now()
        if self._hooks:
            self._hooks.marks = marks

    def describe(self, *, ended: bool) -> dict[str, Any] | None:
        """The shares so far; None where they are unknown."""
        return describe(self.log, self._step_every, ended=ended)

    def unrecorded_training(self) -> str | None:
        """What the reader of a recording has to know of trainings unlike the recorded one."""
        return unrecorded_training(self.log)

    def excluding(self) -> AbstractContextManager[None]:
        """The time inside is the recorder's."""
        return self.log.excluding()

    def publish_now_and_then(self, publish: Callable[[dict[str, Any]], None]) -> None:
        """Call `publish` with the shares between steps, ever less often."""
        self.log.on_due = lambda: self._publish(publish)
        self._set_due(0)

    def _publish(self, publish: Callable[[dict[str, Any]], None]) -> None:
        begun = self.log.clock()
        with self.excluding(), suppress(Exception):  # called from a hook of the program
            if facts := self.describe(ended=False):
                publish(facts)
        self._set_due(self.log.clock() - begun)

    def _set_due(self, cost_ns: int) -> None:
        now = self.log.now()
        grown = round(_GROWTH * (now - self.log.begun_ns))
        self.log.due_ns = now + max(_SHORTEST_NS, grown, round(cost_ns / _MOST_COST))
