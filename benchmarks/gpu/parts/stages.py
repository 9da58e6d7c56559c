"""The stages of a step by hand-set timers, with nothing watching: the truth for those of captures.

Each stage has the time that the CPU spends in its call, and on a GPU the time from the end of the
stage before on the device to its own end, by CUDA events. The CPU never waits between stages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import spread, wait_for
from benchmarks.gpu.training import STAGES, Training

_START = "start"


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model of which there is a plain capture."""
    for model in setting.of(MODELS):
        yield model, partial(stages, model, setting)


def stages(model: str, setting: Setting) -> Json:
    """Milliseconds of each stage, on the CPU and on the device, over neighboring steps."""
    warmup, steps = (1, 3) if setting.quick else (5, 20)
    training = Training(Case(model), setting)
    for _ in range(warmup):
        training.step()
    wait_for(setting.device)
    timers = [StageTimer(setting.on_gpu) for _ in range(steps)]
    for timer in timers:
        timer.mark(_START)
        training.step(mark=timer.mark)
    wait_for(setting.device)
    return {
        "samples": training.samples,
        "step_ms": spread([sum(timer.cpu_ms().values()) for timer in timers]),
        "cpu_ms": _spreads([timer.cpu_ms() for timer in timers]),
        "device_ms": _spreads([timer.device_ms() for timer in timers]) if setting.on_gpu else {},
    }


@dataclass
class StageTimer:
    """Clocks of the CPU and of the device at the start of one step and at the end of each stage."""

    on_gpu: bool
    names: list[str] = field(default_factory=list)
    cpu_ns: list[int] = field(default_factory=list)
    events: list[torch.cuda.Event] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """A stage has ended; its device work may go on."""
        self.names.append(name)
        self.cpu_ns.append(time.perf_counter_ns())
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)

    def cpu_ms(self) -> dict[str, float]:
        """The CPU's time in each stage, ms."""
        spans = (1e-6 * (end - start) for start, end in pairwise(self.cpu_ns))
        return dict(zip(self.names[1:], spans, strict=True))

    def device_ms(self) -> dict[str, float]:
        """From the end of the stage before on the device to the end of each, ms."""
        spans = (start.elapsed_time(end) for start, end in pairwise(self.events))
        return dict(zip(self.names[1:], spans, strict=True))


def _spreads(steps: Sequence[Mapping[str, float]]) -> Json:
    return {stage: spread([step[stage] for step in steps]) for stage in STAGES}
