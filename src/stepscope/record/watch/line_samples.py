"""Which lines the training thread executes, and the loader workers that it starts.

Sampled over the whole run in constant memory, from this process: nothing of it runs in a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stepscope.record import fork_warnings
from stepscope.record.samples.loop_samples import StackSampler, StackSamples, Unavailable, line_of
from stepscope.record.unreplaced import time

_EVERY_NS = 20_000_000  # at first; chosen: 15 samples in a stretch of 0.3 s. The sampler thins them out
_LATER = 1.05  # of the length of the run when they were last read: that takes up to 15 ms
_SOONEST_NS = 1_000_000_000  # 1 s; chosen: what a kill may lose of a short run
_FETCH = "torch/utils/data/_utils/fetch.py"
Line = tuple[str, str, int, bool]  # function, file and number, and whether a worker executes it
Lines = list[Line]  # the most frequent first
Samples = list[tuple[int, int]]  # ns since the run began, and position in the lines


class LineSamples:
    """Samples the thread that calls `begin`, from then on; nothing where it cannot."""

    def __init__(self, begun_ns: int, begun_unix_ns: int) -> None:
        self._begun_ns, self._begun_unix_ns, self._after_ns = begun_ns, begun_unix_ns, 0
        self._sampler: StackSampler | None = None
        self.stop: Callable[[], object] = lambda: None

    def read_if_due(self, *, is_end: bool = False) -> tuple[Lines, Samples] | None:
        """All samples so far, about twenty times in each doubling of the run, and at its end."""
        now = time.perf_counter_ns()
        if now < self._after_ns and not is_end:
            return None
        since_ns = now - self._begun_ns
        self._after_ns = self._begun_ns + max(round(_LATER * since_ns), since_ns + _SOONEST_NS)
        return _described(sampler.so_far(), self._begun_unix_ns) if (sampler := self.begin()) else None

    def follow(self, iterator: Any) -> None:
        """Sample the workers that an iterator of a DataLoader has started."""
        with suppress(Exception):  # the program goes on
            for worker in iterator._workers:
                if sampler := self.begin():
                    sampler.follow(worker.pid)

    def begin(self) -> StackSampler | None:
        """The sampler, which the first call starts; None where there can be none."""
        with suppress(Unavailable, OSError):
            if not self._sampler:
                fork_warnings.watch()
                self._sampler = StackSampler(_EVERY_NS)
                self.stop = self._sampler.stop
        return self._sampler


def _described(samples: StackSamples, begun_unix_ns: int) -> tuple[Lines, Samples]:
    stacks = list(zip(samples.stack, samples.of_child, strict=True))
    lines = {stack: _line(samples, samples.stacks[stack[0]], bool(stack[1])) for stack in set(stacks)}
    counts = Counter(line for stack in stacks if (line := lines[stack]))
    numbers = {line: at for at, (line, _) in enumerate(counts.most_common())}
    seen = zip(samples.times_ns, stacks, strict=True)
    return list(numbers), [(ns - begun_unix_ns, numbers[line]) for ns, at in seen if (line := lines[at])]


def _line(samples: StackSamples, stack: list[int], in_worker: bool) -> Line | None:
    """The line of the program that a stack is at; None for a worker that makes no batch now."""
    files = [samples.places[place].file for place in stack]
    if in_worker:  # below are the frames of the loop that forked it, or of what spawned it
        stack = stack[: next((at for at, file in enumerate(files) if file.endswith(_FETCH)), 0)]
    line = line_of(samples, stack)
    return (*line, in_worker) if line else None
