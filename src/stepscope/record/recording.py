"""Consecutive recorded steps, whatever the framework."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepscope.record.capture_file import Member
from stepscope.record.samples.loop_samples import LoopSamples

Json = dict[str, Any]


@dataclass(kw_only=True)
class Recording:
    """A window with its modules, data loaders, created objects and times (`StepReadings`).

    The window has consecutive steps under a profiler: `complete` lists those recorded in full, and
    `export` writes what the profiler recorded to a path.
    `updated` has the modules that each optimizer updates (`updated_modules`). `samples` are of the
    thread in which it began, until they are stopped.
    """

    window: Any
    samples: LoopSamples | None = None
    early: bool = False
    modules: Json = field(default_factory=lambda: {"roots": []})
    updated: dict[str, list[str]] = field(default_factory=dict)
    loaders: list[Json] = field(default_factory=list)
    created: list[Json] = field(default_factory=list)
    times: Json | None = None
    members: dict[str, Member] = field(default_factory=dict)
    member: str = "trace.json"
    warning: str = ""  # why there are fewer steps than requested

    @property
    def steps(self) -> list[int]:
        """The steps recorded in full."""
        return self.window.complete

    @property
    def span(self) -> str:
        if not self.steps:
            return "no complete step"
        first, last = self.steps[0], self.steps[-1]
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def stop_samples(self) -> None:
        samples, self.samples = self.samples, None
        if samples:
            self.members["samples.json"] = samples.stop()

    @property
    def all_members(self) -> dict[str, Member]:
        return {self.member: self.window.export, **self.members}


def call_in_forked_children(method: Callable[[], object]) -> None:
    """Forked processes, such as data loader workers, do not record; keeps no recorder alive."""
    reference = weakref.WeakMethod(method)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: (living := reference()) and living())
