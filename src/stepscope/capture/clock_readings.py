"""Clocks that are read where steps begin and end.

Source: Linux, Documentation/scheduler/sched-stats.rst (the second field of `schedstat`).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

try:
    import resource
except ImportError:  # of Unix only
    resource = None  # type: ignore[assignment]


class Reading(NamedTuple):
    """Clocks at one moment, ns: elapsed time, CPU time of the thread, of the process, and parts.

    `parts` has elapsed time and CPU time of the thread so far in each part of a step, by its name;
    `page_faults` is how often the process has got a page of memory, None if that is not counted.
    """

    elapsed_ns: int
    cpu_ns: int
    process_cpu_ns: int
    parts: dict[str, tuple[int, int]]
    page_faults: int | None = None


class Timer(Protocol):
    """Reads the clocks."""

    def read(self) -> Reading:
        """The clocks now."""


class StepMarker(Timer, Protocol):
    """Keeps the clocks of several moments for later."""

    def mark(self) -> None:
        """A step ends and the next begins."""

    def readings(self) -> list[Reading]:
        """The clocks at each mark since the last call."""


class WholeSteps:
    """Reads the clocks of steps whose parts are not timed."""

    def read(self) -> Reading:
        """The clocks now."""
        clocks = (time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns())
        return Reading(*clocks, {}, page_faults())


def page_faults() -> int | None:
    """How often the process has got a page of memory without reading it; None if not known."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else None


def queued_ns() -> int | None:
    """How long this thread could run but got no core so far; None if the system does not say."""
    try:
        statistics = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return int(statistics.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
