"""Step times and memory without a profiler.

On a GPU a step lasts from the moment the device passes the end of one step to the moment it passes
the end of the next. The CPU is never made to wait between steps, since that would change what is
measured; it waits once before the first and once after the last.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.gpu import machine
from benchmarks.gpu.setting import Setting

Json = dict[str, Any]
Step = Callable[[], object]


@dataclass(frozen=True)
class Effort:
    """How many steps to take: `least` to `most`, as many as `seconds` allow, after a warm-up."""

    warmup: int = 5
    least: int = 10
    most: int = 50
    seconds: float = 2.5


QUICK = Effort(warmup=1, least=3, most=3)


def measure_steps(step: Step, setting: Setting, effort: Effort | None = None) -> Json:
    """Step times, ms, and peak memory, bytes, from the first warm-up step on."""
    effort = QUICK if setting.quick else effort or Effort()
    first_s, later_s = _warm_up(step, setting.device, effort.warmup)
    count = min(effort.most, max(effort.least, int(effort.seconds / max(later_s, 1e-6))))
    begin = time.perf_counter()
    lengths = step_lengths_ms(step, setting.device, count)
    wall_s = time.perf_counter() - begin
    return {
        "step_ms": spread(lengths),
        "wall_ms_per_step": 1e3 * wall_s / count,
        "first_step_s": first_s,
        **(peak_memory() | {"clocks": machine.clocks()} if setting.on_gpu else {}),
    }


def step_lengths_ms(step: Step, device: str, count: int) -> list[float]:
    """The length of each of `count` steps."""
    return (_on_gpu if device == "cuda" else _on_cpu)(step, count)


def _on_gpu(step: Step, count: int) -> list[float]:
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    ends[0].record()
    for end in ends[1:]:
        step()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in itertools.pairwise(ends)]


def _on_cpu(step: Step, count: int) -> list[float]:
    ends = [time.perf_counter()]
    for _ in range(count):
        step()
        ends.append(time.perf_counter())
    return [1e3 * (end - start) for start, end in itertools.pairwise(ends)]


def _warm_up(step: Step, device: str, count: int) -> tuple[float, float]:
    """Seconds of the first step and of the last."""
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return seconds[0], seconds[-1]


def wait_for(device: str) -> None:
    """Until everything that was launched is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def spread(values: list[float]) -> Json:
    """Median, quartiles and extremes."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "median": middle,
        "quartiles": [low, high],
        "min": min(values),
        "max": max(values),
        "count": len(values),
    }


def peak_memory() -> Json:
    """The most device memory in use and held since `release`, bytes."""
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def release(device: str) -> None:
    """Leave as little as can be of the measurement before."""
    if "torch._dynamo" in sys.modules:  # which is slow to import
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
