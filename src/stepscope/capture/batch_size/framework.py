"""What measuring a training step needs of a framework."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

from stepscope.capture.batch_size.energy_counters import PowerMeter
from stepscope.capture.batch_size.step_clock import StepClock

Json = dict[str, Any]


class Peak(NamedTuple):
    """The most memory in use within a step, bytes, and what an allocator reserved for it."""

    bytes: int
    reserved: int = 0


class Framework(Protocol):
    """Memory, time and device of training steps; one implementation for each framework.

    Attributes:
        least_memory_steps: steps in which memory must be watched at least.
    """

    least_memory_steps: int

    def begin_memory(self, step: int) -> None:
        """Watch memory from now on, where step number `step` begins."""

    def end_memory_step(self, *, last: bool) -> None:
        """A step in which memory is watched ends here."""

    def peak(self) -> Peak:
        """The peak of the steps in which memory was watched; they are over."""

    def clock(self) -> StepClock:
        """A clock for steps from now on."""

    def power_meter(self) -> PowerMeter:
        """A meter of the devices in use."""

    def facts(self) -> Json:
        """`framework`, `version`, `device`, `threads`, and whether the peak is `exact`."""


def main_memory() -> int | None:
    """Bytes of this machine's memory; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
