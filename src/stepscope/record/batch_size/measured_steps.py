"""From the end of one step to the end of the next: what is measured when, power included.

step   0 … warmup-1     memory steps             1         timed steps
       observed         memory watched,          settles   nothing at work but a clock
                        perhaps recorded
"""

import ctypes
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.record.batch_size.request import RunRequest
from stepscope.record.unreplaced import time

_ALIKE = 0.95  # of the largest inputs: these count as equally long
Json = dict[str, Any]
_VARIED_STEPS = 8  # are watched where batches differ in size; chosen: to meet a long one


class StepClock:
    """Notes the end of each step."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._begin = time.perf_counter()

    def tick(self) -> None:
        """A step ends here; the first tick is where the first one begins."""
        self._ends.append(time.perf_counter())

    @property
    def steps(self) -> int:
        return max(0, len(self._ends) - 1)

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._begin

    def lengths_ms(self) -> list[float]:
        return [1e3 * (end - start) for start, end in itertools.pairwise(self._ends)]


class StepCounts:
    """Samples of each step, or 0, and elements of its inputs, or None, where nothing counts them."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.sizes: list[int | None] = []
        self._samples = 0
        self._size: int | None = None

    def add_samples(self, count: int) -> None:
        self._samples += count

    def add_inputs(self, elements: int) -> None:
        self._size = (self._size or 0) + elements

    def end_step(self) -> None:
        self.samples.append(self._samples)
        self.sizes.append(self._size)
        self._samples, self._size = 0, None

    def forget(self) -> None:
        """What came before does not count: the first steps may have been misdetected."""
        self.samples.clear()
        self.sizes.clear()

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most elements, of the steps known."""
        sizes = [size for size in self.sizes if size is not None]
        return min(sizes, default=0), max(sizes, default=0)

    @property
    def varied(self) -> bool:
        least, most = self.range
        return least < _ALIKE * most

    def is_long(self, size: int | None) -> bool:
        """Whether a step of this size is among the longest, as far as is known."""
        return size is None or size >= _ALIKE * self.range[1]


class Peak(NamedTuple):
    """The most memory in use within a step, bytes, and what an allocator reserved for it."""

    bytes: int
    reserved: int = 0


def main_memory() -> int | None:
    """Bytes of this machine's memory; None if unknown."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


class Steps(ABC):
    """Measures some of the steps, then calls `finish`; `detects` is whether it finds their ends itself.

    How memory, time and device are measured is for each framework to say.
    """

    least_memory_steps = 1

    def __init__(self, request: RunRequest, finish: Callable[[Json], object], counts: StepCounts) -> None:
        self.request = request
        self.count = 0
        self.detects = True
        self._finish = finish
        self._counts = counts
        self._watched = 0
        self._is_watching = False
        self._peak = Peak(0)
        self._clock: StepClock | None = None
        self._power: PowerMeter | None = None
        self._first_timed = 0

    @abstractmethod
    def begin_memory(self, step: int) -> None:
        """Watch memory from now on, where step number `step` begins."""

    @abstractmethod
    def end_memory_step(self, *, last: bool) -> None:
        """A step in which memory is watched ends here."""

    @abstractmethod
    def peak(self) -> Peak:
        """The peak of the steps in which memory was watched; they are over."""

    @abstractmethod
    def power_meter(self) -> "PowerMeter":
        """A meter of the devices in use."""

    @abstractmethod
    def facts(self) -> Json:
        """`framework`, `device`, and whether the peak is `exact`."""

    def clock(self) -> StepClock:
        return StepClock()

    @property
    def unsure_steps(self) -> int:
        """How much longer to warm up, since what ends may not be whole steps."""
        return 0

    def begin_iterations(self, model: Any, inputs: Any) -> None:
        """Iterations of this model on these inputs follow; whoever makes them calls `ended`."""
        self.detects = False

    def restart(self) -> None:
        """What ended before were no whole steps, unless they are measured already."""
        if not self._is_watching and self._clock is None:
            self.count = 0

    def forget_measured(self) -> None:
        """Measure again from the warm-up on."""
        if self._is_watching:
            self.end_memory_step(last=True)
        self._watched, self._is_watching, self._clock, self._power = 0, False, None, None

    def ended(self) -> None:
        self.count += 1
        self._counts.end_step()
        if self._clock is not None:
            self._time(self._clock)
        elif self._is_watching:
            self._watch()
        elif self.count >= self.request.effort.warmup + self.unsure_steps:
            self._counts.forget()
            self._is_watching = True
            self.begin_memory(self.count)

    def result(self) -> Json:
        lengths = self._clock.lengths_ms() if self._clock else []
        inputs = self._counts.sizes[self._first_timed :][: len(lengths)]
        rows = zip(lengths, inputs, self._counts.samples[self._first_timed :][: len(lengths)], strict=True)
        long = [(ms, count) for ms, size, count in rows if self._counts.is_long(size)]
        return {
            "outcome": "measured" if lengths else "too_short",
            "steps_seen": self.count,
            "steps_ms": [ms for ms, _ in long],
            "samples": [count for _, count in long],
            "input_elements": list(self._counts.range),
            "bytes": self._peak.bytes,
            "reserved_bytes": self._peak.reserved or None,
            "power": self._power and self._power.reading(),
            **self.facts(),
        }

    def _watch(self) -> None:
        self._watched += 1
        varied = self._counts.varied
        wanted = max(self.request.effort.memory, self.least_memory_steps)
        last = self._watched >= (_VARIED_STEPS if varied else wanted)
        self.end_memory_step(last=last)
        if last:
            self._is_watching = False
            self._peak = self.peak()
            self._clock = self.clock()

    def _time(self, clock: StepClock) -> None:
        clock.tick()
        effort = self.request.effort
        if clock.steps == 0:
            self._power = self.power_meter()
            self._first_timed = len(self._counts.sizes)
        long = sum(map(self._counts.is_long, self._counts.sizes[self._first_timed :]))
        enough = long >= effort.least and clock.elapsed_s >= effort.seconds
        if enough or clock.steps >= effort.most:
            self._finish(self.result())


_LEAST_S = 0.5  # counters are renewed every 20 to 100 ms
_POWERCAP = Path("/sys/class/powercap")
_NVML = "libnvidia-ml.so.1"
Counter = Callable[[], float]  # joules since an unknown time


class PowerMeter:
    """Mean power from its making to a reading."""

    def __init__(self, source: str, counters: Iterable[Counter]) -> None:
        self._source = source
        self._counters = list(counters)
        self._begun = time.perf_counter()
        self._before = [read() for read in self._counters]

    def reading(self) -> dict[str, Any] | None:
        """`{"watts", "source"}`; None if there are no counters any more, or too little time."""
        seconds = time.perf_counter() - self._begun
        if not self._counters or seconds < _LEAST_S:
            return None
        with suppress(OSError):  # the counter went away
            joules = sum(read() - before for read, before in zip(self._counters, self._before, strict=True))
            return {"watts": joules / seconds, "source": self._source}
        return None


def gpu_counters(uuids: Iterable[str]) -> list[Counter]:
    """Counters of NVIDIA GPUs by UUID (`GPU-…`); none if any of them has none.

    Source: NVIDIA, NVML reference, nvmlDeviceGetTotalEnergyConsumption (Volta or newer).
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(_NVML)
        counters = [] if library.nvmlInit_v2() else [_gpu_counter(library, uuid) for uuid in uuids]
        for read in counters:
            read()
        return counters
    return []


def _gpu_counter(library: Any, uuid: str) -> Counter:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        raise OSError(f"no GPU {uuid}")

    def read() -> float:
        millijoules = ctypes.c_ulonglong()
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
            raise OSError(f"no energy counter of GPU {uuid}")
        return millijoules.value / 1e3

    return read


def cpu_counters(folder: Path = _POWERCAP) -> list[Counter]:
    """Counters of all CPU packages, whatever runs on them; none if one cannot be read.

    Source: the Linux kernel, Documentation/power/powercap/powercap.rst.
    """
    with suppress(OSError, ValueError):
        packages = [package for package in folder.glob("intel-rapl:*") if package.name.count(":") == 1]
        return [_package_counter(package) for package in packages]
    return []


def _package_counter(package: Path) -> Counter:
    file = package / "energy_uj"
    whole = int((package / "max_energy_range_uj").read_text())
    last, turns = int(file.read_text()), 0

    def read() -> float:
        nonlocal last, turns
        now = int(file.read_text())
        turns += now < last  # the counter began again
        last = now
        return (turns * whole + now) / 1e6

    return read
