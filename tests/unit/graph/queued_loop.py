"""A training loop that runs ahead of its device, recorded from some step on, with its truth known.

The queue of the device holds `ROOM` launches; a CPU that is further ahead waits in its launch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

ROOM = 1024
LATENCY_US, RETURN_US = 5.0, 2.0


@dataclass(frozen=True)
class QueuedLoop:
    """`launches` kernels per step: each takes the CPU `call_us` and the device about `kernel_us`.

    Kernels are from next to nothing to twice that long, the same in each step.
    """

    launches: int
    call_us: float
    kernel_us: float
    warm_up: int = 5
    recorded: int = 3
    shows_queue: bool = False  # whether the recording has work that was launched before it
    copy_us: float = 0.0  # of the CPU, for a copy at the start of each step; 0 without one

    def with_device(self, factor: float) -> QueuedLoop:
        """The same loop on a device that is `factor` times as fast."""
        return replace(self, kernel_us=self.kernel_us / factor)

    @property
    def step_us(self) -> float:
        """The length of a step once the queue is full, or stays empty."""
        return self.launches * max(self.kernel_us, self.call_us)

    def recording(self, rank: int = 0) -> Trace:
        """The annotated trace of the last steps."""
        lines: list[str] = []
        clock, ends, step_begin = 0.0, [0.0], 0.0
        lengths = self._lengths()
        for number in range((self.warm_up + self.recorded) * self.launches):
            step, place = divmod(number, self.launches)
            copies = place == 0 and self.copy_us > 0
            begin, clock = clock, clock + (self.copy_us if copies else self.call_us)
            if number >= ROOM and ends[number - ROOM + 1] > begin:
                clock = max(clock, ends[number - ROOM + 1] + RETURN_US)
            start = max(ends[-1], begin + LATENCY_US)
            ends.append(start + lengths[place])
            step_begin = begin if place == 0 else step_begin
            launched = f"| corr={number}"
            if step >= self.warm_up or self.shows_queue:
                lines.append(f"stream 7 | {start:.3f} {ends[-1]:.3f} | sgemm {launched}")
            if step < self.warm_up:
                continue
            call = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
            lines.append(f"main | {begin:.3f} {clock:.3f} | {call} {launched}")
            if place == self.launches - 1:
                lines.append(f"main | {step_begin:.3f} {clock:.3f} | ProfilerStep#{step}")
        return annotate(drawn_trace("\n".join(lines), ranks=(rank,)))

    def _lengths(self) -> list[float]:
        """The lengths of a step's kernels, whose mean is `kernel_us`."""
        chance = random.Random(self.launches)
        drawn = [chance.random() for _ in range(self.launches)]
        scale = self.kernel_us * self.launches / sum(drawn)
        return [scale * one for one in drawn]
