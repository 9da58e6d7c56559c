"""Times of steps: recorded or not, in PyTorch or JAX, of a run or of a trial of `verify`.

A clock (`PartTimer`, or `read_clocks` where parts are not timed) is read where steps begin and end;
`StepReadings` holds these readings and describes them. Which steps are timed differs: those under
the profiler, those after it (`UnrecordedSteps`), those of a JAX loop that runs no further ahead
(`SteadySteps`), or all after a warm-up (`verify_trial`).

Source: Linux, Documentation/scheduler/sched-stats.rst (the second field of `schedstat`).
"""

import math
import mmap
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.record.device_times import DeviceTimes
from stepscope.record.patch import ignoring
from stepscope.record.unreplaced import time

try:
    import resource
except ImportError:  # of Unix only
    resource = None  # type: ignore[assignment]

MOST, FEWEST = 20, 3  # steps that are described; fewer say nothing of the others

_MEASURED = 3  # times; other processes make one of them longer
_PAGES = 256  # touched to measure what one costs: 1 MiB, too little for a huge page
# When steps after a recording have settled: caches and the core's clock rate need about a second.
_RECENT = 5  # steps that are compared with as many before them
_STILL_FALLING = 0.98  # recent median by the earlier one; chosen: less is still settling, more is noise
_LONG_STEP_NS = 20_000_000  # looked at after each, not after several
_LONGEST_WAIT_NS, _MOST_WAITED = 1_000_000_000, 50
# How many are timed then: enough for a median within a few percent, for at most 10 s.
_BLOCK, _SKIPPED = 10, 2  # steps between two changes of the detail, and after one
_SHORTEST_NS, _LONGEST_NS, _MOST_TIMED = 500_000_000, 10_000_000_000, 60
_MOST_COST = 0.3  # of a part: what is more is noise, not the cost of timing
_CALLED = "forward", "evaluation"
_MERGED = *_CALLED, "loss", "rest"  # parts that only a watch on calls tells apart
# Steps that do different work: one is so many times as long as the next shorter one.
_APART, _MOST_KINDS = 1.4, 4
_OF_STEP = ("median_ns", "p10_ns", "p90_ns"), ("cpu_ns", "cpu_p10_ns", "cpu_p90_ns")
_OF_PART = ("median_ns", "p10_ns", "p90_ns", "recurring_ns"), ("cpu_ns",)


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


def read_clocks() -> Reading:
    """The clocks now, of steps whose parts are not timed."""
    clocks = (time.perf_counter_ns(), time.thread_time_ns(), time.process_time_ns())
    return Reading(*clocks, {}, page_faults())


class StepReadings:
    """The clocks at the begin and end of each of some steps."""

    def __init__(
        self, read: Callable[[], Reading] = read_clocks, queued: Callable[[], int | None] | None = None
    ) -> None:
        self._read = read
        self._begun: Reading | None = None
        self._read_queue, self._is_of_thread = queued or queued_ns, queued is None
        self._queued: tuple[int | None, int | None] = self._read_queue(), None  # at the first begin, last end
        self.steps: list[tuple[Reading, Reading]] = []

    def begin(self) -> None:
        if not self.steps:
            self._queued = self._read_queue(), None
        self._begun = self._read()

    def end(self) -> None:
        """The step that has begun, if any, ends."""
        if self._begun:
            self.follow()
        self._begun = None

    def follow(self) -> None:
        """A step ends and the next begins, without a pause for the recorder."""
        if not self._begun:
            self.begin()
            return
        now = self._read()
        self.steps.append((self._begun, now))
        self._queued = self._queued[0], self._read_queue()
        self._begun = now

    @property
    def count(self) -> int:
        return len(self.steps)

    @property
    def is_complete(self) -> bool:
        return self.count >= MOST

    @property
    def lengths_ns(self) -> list[int]:
        return [after.elapsed_ns - before.elapsed_ns for before, after in self.steps]

    @property
    def cpu_ns(self) -> list[int]:
        """CPU time of the thread in each step, ns."""
        return [after.cpu_ns - before.cpu_ns for before, after in self.steps]

    @property
    def process_cpu_ns(self) -> list[int]:
        """CPU time of all threads in each step, ns."""
        return [after.process_cpu_ns - before.process_cpu_ns for before, after in self.steps]

    def part_ns(self, name: str, clock: int = 0) -> list[int]:
        """Time in a part in each step, ns: elapsed (clock 0), or CPU time of the thread (1)."""
        return [after.parts[name][clock] - before.parts[name][clock] for before, after in self.steps]

    def describe(self) -> dict[str, Any] | None:
        """Their count, and percentiles of their times, ns; None if no step was timed.

        `median_ns`, `p10_ns` and `p90_ns` are elapsed time, `cpu_ns` (with percentiles) is CPU time
        of the thread that trains and `process_cpu_ns` of all threads (medians); `parts` has both
        medians and percentiles of elapsed time by part, and `recurring_ns`, its mean where the
        longest counts as the next longest.
        `page_faults` is the median of those that the process had, None if they are not counted.
        `queued_ns` is how long that thread waited for a core, of `elapsed_ns` in all, in which it used
        one for `used_ns`.
        Without parts, other threads do the work: what that thread took is None, and these are of all
        threads, as far as other processes used the cores meanwhile.
        """
        if not self.steps:
            return None
        names = list(self.steps[0][0].parts)
        cpu = _percentiles(self.cpu_ns) if names else (None, None, None)
        first, last = self.steps[0][0], self.steps[-1][1]
        is_unknown = self._is_of_thread and not names  # that thread only waits for those that work
        before, after = self._queued
        after = self._read_queue() if after is None else after
        return {
            "count": self.count,
            **dict(zip(_OF_STEP[0], _percentiles(self.lengths_ns), strict=True)),
            **dict(zip(_OF_STEP[1], cpu, strict=True)),
            "process_cpu_ns": median(self.process_cpu_ns),
            "page_faults": self._page_faults(),
            "elapsed_ns": last.elapsed_ns - first.elapsed_ns,
            "used_ns": last.cpu_ns - first.cpu_ns if names else last.process_cpu_ns - first.process_cpu_ns,
            "queued_ns": None if before is None or after is None or is_unknown else max(after - before, 0),
            "parts": {name: self._describe_part(name) for name in names},
        }

    def describe_each(self) -> dict[str, Any] | None:
        """CPU time of each step and of its parts, ns, of the thread that trains; None for many steps.

        Without parts it is of all threads.
        """
        if not 0 < self.count <= _MOST_TIMED:
            return None
        parts = {name: self.part_ns(name, clock=1) for name in self.steps[0][0].parts}
        return {"cpu_ns": self.work_ns, "elapsed_ns": self.lengths_ns, "parts": parts}

    @property
    def work_ns(self) -> list[int]:
        """CPU time of each step: of the thread that trains, of all threads where parts are unknown."""
        return self.cpu_ns if self.steps and self.steps[0][0].parts else self.process_cpu_ns

    def bounds_of_kinds(self) -> list[int]:
        """CPU times that separate steps with different work, as those with an evaluation, ascending."""
        ordered = sorted(self.work_ns)
        jumps = ((after / max(before, 1), before, after) for before, after in pairwise(ordered))
        apart = sorted((jump for jump in jumps if jump[0] >= _APART), reverse=True)[: _MOST_KINDS - 1]
        return sorted(math.isqrt(before * after) for _, before, after in apart)

    def of_kind(self, bounds: Sequence[int], kind: int) -> "StepReadings":
        """The steps between two bounds."""
        chosen = StepReadings(self._read)
        chosen._queued = self._queued
        pairs = zip(self.steps, self.work_ns, strict=True)
        chosen.steps = [step for step, work in pairs if bisect_left(bounds, work) == kind]
        return chosen

    def describe_kinds(self) -> dict[str, Any] | None:
        """As `describe`; where steps do different work, `kinds` describes each kind, the shortest first."""
        facts, bounds = self.describe(), self.bounds_of_kinds()
        if facts and bounds:
            facts["kinds"] = [self.of_kind(bounds, kind).describe() for kind in range(len(bounds) + 1)]
        return facts

    def _describe_part(self, name: str) -> dict[str, int]:
        elapsed = self.part_ns(name)
        figures = *_percentiles(elapsed), _recurring(elapsed)
        return {**dict(zip(_OF_PART[0], figures, strict=True)), "cpu_ns": median(self.part_ns(name, clock=1))}

    def _page_faults(self) -> int | None:
        counts = [
            after.page_faults - before.page_faults
            for before, after in self.steps
            if before.page_faults is not None and after.page_faults is not None
        ]
        return median(counts) if counts else None


def median(times: Sequence[int]) -> int:
    """One of the middle values."""
    return _percentiles(times)[0]


def _percentiles(times: Sequence[int]) -> tuple[int, int, int]:
    ordered, last = sorted(times), len(times) - 1
    return ordered[round(0.5 * last)], ordered[round(0.1 * last)], ordered[round(0.9 * last)]


def _recurring(times: Sequence[int]) -> int:
    """The mean, where the longest counts as the next longest: it may be the start of an epoch."""
    ordered = sorted(times)
    return round(sum([*ordered[:-1], ordered[-2:][0]]) / len(ordered))


class Detail(IntEnum):
    """What is timed of a step."""

    STEP = 0
    PARTS = 1
    CALLS = 2  # parts, and which of them are calls of models


class UnrecordedSteps:
    """Times steps after the recording, once they are as fast as they will be.

    After a recording, caches, the allocator and the clock rate of the core settle, so steps become shorter
    for a while. Then blocks of steps are timed in turns, in more and less detail: with parts and a watch on
    the calls of models, with parts only, and as a whole. The watch makes every module call longer, by 1 µs
    and more where caches are cold; timing the parts takes caches from what runs next. What steps in more
    detail took longer than those in less is removed from the parts.

    At the end of a step the clocks are read, and nothing else is done until a block is over:
    whatever runs between steps takes caches from the program, and made its steps 10 to 15 % longer.
    `time_in` changes the detail; None if everything must be timed. Host and device come `apart` at
    the end, since they wait for the device between steps.
    """

    def __init__(
        self,
        clock: Any,  # a `PartTimer`, which keeps the clocks at each mark for later
        time_in: Callable[[Detail], None] | None,
        apart: DeviceTimes | None = None,
    ) -> None:
        self._clock, self._time_in, self._apart = clock, time_in, apart
        self._are_timed = False  # whether only host and device are left
        self._waited, self._is_waiting = StepReadings(), True
        self._timed = {detail: StepReadings() for detail in Detail}
        self._detail = Detail.CALLS
        self._left = 1  # steps in this block, of which some are skipped
        self._skipped = 0
        self.is_complete = False  # whether enough steps have been timed

    def step_ended(self) -> None:
        if self._are_timed and self._apart:
            self._apart.end()
            self._time_apart(self._apart)
            return
        self._clock.mark()
        self._left -= 1
        if not self._left:
            self._collect()
            self._plan_block()
            self._clock.mark()

    def _time_apart(self, apart: DeviceTimes) -> None:
        self.is_complete = apart.is_over
        if not apart.is_over:
            apart.begin()

    def describe(self) -> dict[str, Any] | None:
        """As `StepReadings.describe_kinds`, without the cost of timing parts and watching calls."""
        self._collect()
        steps = self._timed[Detail.CALLS]
        if not steps.is_complete:  # the run has ended
            steps = self._waited
            steps.steps = [*steps.steps, *self._timed[Detail.CALLS].steps][-MOST:]
        facts, bounds = steps.describe_kinds(), steps.bounds_of_kinds()
        if facts:
            self._remove_cost(facts, steps, lambda timed: timed)
        for kind, of_kind in enumerate((facts or {}).get("kinds", ())):
            chosen = partial(StepReadings.of_kind, bounds=bounds, kind=kind)
            self._remove_cost(of_kind, chosen(steps), chosen)
        apart = self._apart.describe() if self._apart else None
        return facts | {"apart": apart} if facts and apart else facts

    def _collect(self) -> None:
        steps = self._waited if self._is_waiting else self._timed[self._detail]
        steps.steps += list(pairwise(self._clock.readings()))[self._skipped :]

    def _plan_block(self) -> None:
        self._skipped = 0
        if self._is_waiting:
            self._is_waiting = not _has_settled(self._waited)
            is_long = sum(self._waited.lengths_ns) > self._waited.count * _LONG_STEP_NS
            self._left = (1 if is_long else _RECENT) if self._is_waiting else _BLOCK
        elif self._time_in:
            self._detail = Detail((self._detail - 1) % len(Detail))
            self._time_in(self._detail)
            self._left, self._skipped = _BLOCK + _SKIPPED, _SKIPPED
        else:
            self._left = _BLOCK
        self._are_timed = self._has_enough()
        if self._are_timed and self._apart:
            if self._time_in:
                self._time_in(Detail.STEP)
            self._time_apart(self._apart)
        else:
            self.is_complete = self._are_timed

    def _has_enough(self) -> bool:
        timed_ns = sum(sum(steps.lengths_ns) for steps in self._timed.values())
        if not self._timed[Detail.CALLS].is_complete:
            return False
        if not self._time_in or timed_ns > _LONGEST_NS:
            return True
        fewest = min(steps.count for steps in self._timed.values())
        return fewest >= _MOST_TIMED or (fewest >= MOST and timed_ns > _SHORTEST_NS)

    def _remove_cost(
        self, facts: dict[str, Any], watched: StepReadings, chosen: Callable[[StepReadings], StepReadings]
    ) -> None:
        """Remove what steps in more detail took longer than `chosen` ones in less."""
        parts, whole = (chosen(self._timed[detail]) for detail in (Detail.PARTS, Detail.STEP))
        for clock in range(2):
            if parts.count >= FEWEST:
                _remove_from_calls(facts, clock, _merged_ns(watched, clock) - _merged_ns(parts, clock))
            if parts.count >= FEWEST and whole.count >= FEWEST:
                kept = _step_ns(whole, clock) / max(_step_ns(parts, clock), 1)
                _shorten(facts, clock, min(max(kept, 1 - _MOST_COST), 1.0))


def _has_settled(waited: StepReadings) -> bool:
    """Whether the last steps are not shorter than those before them, or it takes too long."""
    lengths = waited.lengths_ns
    if sum(lengths) > _LONGEST_WAIT_NS or len(lengths) >= _MOST_WAITED:
        return True
    recent, before = lengths[-_RECENT:], lengths[-2 * _RECENT : -_RECENT]
    return len(before) == _RECENT and median(recent) >= _STILL_FALLING * median(before)


def _merged_ns(steps: StepReadings, clock: int) -> int:
    """The median time per step in parts that only a watch on calls tells apart, ns."""
    parts = [steps.part_ns(name, clock) for name in _MERGED]
    return median([sum(times) for times in zip(*parts, strict=True)])


def _step_ns(steps: StepReadings, clock: int) -> int:
    return median(steps.cpu_ns if clock else steps.lengths_ns)


def _remove_from_calls(facts: dict[str, Any], clock: int, cost_ns: int) -> None:
    """Take the cost of watching calls from the parts with calls and from the step."""
    middle = _OF_PART[clock][0]
    called = sum(facts["parts"][name][middle] for name in _CALLED)
    removed = min(max(cost_ns, 0), round(_MOST_COST * called))
    for name in _CALLED:
        part = facts["parts"][name]
        share = part[middle] / max(called, 1)
        for key in _OF_PART[clock]:
            part[key] = max(part[key] - round(removed * share), 0)
    for key in _OF_STEP[clock]:  # a short step among long ones cannot have cost as much
        facts[key] -= min(removed, round(_MOST_COST * facts[key]))


def _shorten(facts: dict[str, Any], clock: int, kept: float) -> None:
    """Keep this share of the step and of each of its parts."""
    for key in _OF_STEP[clock]:
        facts[key] = round(kept * facts[key])
    for part in facts["parts"].values():
        for key in _OF_PART[clock]:
            part[key] = round(kept * part[key])


def page_faults() -> int | None:
    """How often the process has got a page of memory without reading it; None if not known."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource else None


def page_fault_ns() -> int | None:
    """What a new page of memory costs the thread, ns, by getting some; None if that is not known.

    No page may be had, as under `ulimit -v`, and none is counted on Windows.
    """
    with ignoring(OSError):
        return min([cost for _ in range(_MEASURED) if (cost := _page_fault_ns())], default=None)
    return None


def _page_fault_ns() -> int | None:
    before = page_faults()
    with mmap.mmap(-1, _PAGES * mmap.PAGESIZE) as memory:
        first, again = (_touching_ns(memory) for _ in range(2))
    got = (page_faults() or 0) - (before or 0)
    return round((first - again) / got) if got >= _PAGES and first > again else None


def _touching_ns(memory: mmap.mmap) -> int:
    begun = time.thread_time_ns()
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1
    return time.thread_time_ns() - begun


def queued_ns(thread: object = None) -> int | None:
    """How long a thread, by default this one, could run but got no core so far; None if not known."""
    with ignoring(OSError, ValueError, IndexError):
        statistics = Path(f"/proc/self/task/{thread or threading.get_native_id()}/schedstat")
        return int(statistics.read_bytes().split()[1])
    return None


class CoreQueue:
    """How long all threads of this process waited for cores that other processes used.

    Threads also wait for each other: of what they waited, no more counts than others used.

    Source: Linux, Documentation/filesystems/proc.rst (`/proc/stat`).
    """

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None
        self._total_ns = 0

    def __call__(self) -> int | None:
        """The sum until now, ns; None if the system does not say."""
        with ignoring(OSError, ValueError, IndexError):
            now = _queued_of_all_ns(), _used_by_others_ns()
            grown_ns = min(after - before for before, after in zip(self._last or now, now, strict=True))
            self._total_ns += max(grown_ns, 0)
            self._last = now
            return self._total_ns
        return None


def _queued_of_all_ns() -> int:
    """The sum over the threads of this process, ns."""
    return sum(queued_ns(thread.name) or 0 for thread in Path("/proc/self/task").iterdir())


def _used_by_others_ns() -> int:
    """The time for which other processes used cores of this machine since it started, ns."""
    with Path("/proc/stat").open("rb") as file:
        user, nice, system, _, _, irq, soft, *_ = map(int, file.readline().split()[1:])
    ticks = user + nice + system + irq + soft
    return round(ticks * 1e9 / os.sysconf("SC_CLK_TCK")) - time.process_time_ns()
