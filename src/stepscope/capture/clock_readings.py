"""Clocks that are read where steps begin and end.

Source: Linux, Documentation/scheduler/sched-stats.rst (the second field of `schedstat`).
"""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path
from typing import NamedTuple, Protocol

try:
    import resource
except ImportError:  # of Unix only
    resource = None  # type: ignore[assignment]

_PAGES = 256  # got to measure what one costs: 1 MiB, too little for a huge page


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


def page_fault_ns() -> int | None:
    """What a new page of memory costs the thread, ns, by getting some; None if that is not known.

    No page may be had, as under `ulimit -v`, and none is counted on Windows.

    Example:
        >>> page_fault_ns() in range(20, 100_000)
        True
    """
    before = page_faults()
    try:
        with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
            first, again = (_touching_ns(memory) for _ in range(2))
    except OSError:
        return None
    got = (page_faults() or 0) - (before or 0)
    return round((first - again) / got) if got >= _PAGES and first > again else None


def _touching_ns(memory: mmap.mmap) -> int:
    begun = time.thread_time_ns()
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1
    return time.thread_time_ns() - begun


def queued_ns() -> int | None:
    """How long this thread could run but got no core so far; None if the system does not say."""
    try:
        statistics = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return int(statistics.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
