"""The cost of timeline levels: the index, single levels and all at once, and JSON for a page.

    python benchmarks/timeline.py TRACE [--levels N]

Levels are those below the slowest step, from the outside inwards; each is made once. Times are CPU
time of one thread, which other programs disturb least.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median, quantiles
from typing import Any

import stepscope
from stepscope.base.json_text import json_bytes
from stepscope.faces.page.level_columns import wire_level
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.level import Level


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--levels", type=int, default=3000)
    args = parser.parse_args()
    trace = stepscope.open(args.trace)
    print(f"{len(trace.events):,} events, load average {os.getloadavg()[0]:.1f}")
    view, index_s = _timed(lambda: TraceView(trace))
    timeline = view.timeline
    _, first_s = _timed(timeline.level)
    start = timeline.start()
    _, step_s = _timed(lambda: timeline.level(start))
    _, search_s = _timed(lambda: timeline.search("gemm").hits(timeline.level()))
    print(
        f"index {index_s:.3f} s, first level {first_s:.3f} s, a step's stages {step_s:.3f} s, "
        f"a search {search_s:.3f} s"
    )
    times, sizes = zip(*_below(view, start, args.levels), strict=True)
    everything, all_s = _timed(lambda: timeline.open_all(start))
    print(f"all {len(everything):,} levels of the step together: {all_s:.2f} s")
    print(f"{len(times):,} levels, ms: {_spread(times, 1e3)}; JSON, kB: {_spread(sizes, 1e-3)}")


def _below(view: TraceView, start: str, most: int) -> Iterator[tuple[float, int]]:
    """Seconds and bytes of each level below an operation, nearest first."""
    timeline = view.timeline
    waiting = deque(_inside(timeline.level(start), start))
    while waiting and most:
        path = waiting.popleft()
        level, seconds = _timed(partial(timeline.level, path))
        yield seconds, len(json_bytes(wire_level(level, view)))
        waiting += _inside(level, path)
        most -= 1


def _inside(level: Level, path: str) -> list[str]:
    """Paths of the operations that hold others."""
    pairs = zip(level.operations, level.costs.events, strict=True)
    return [f"{path}/{one.id}" for one, events in pairs if events > 1]


def _spread(values: tuple[float, ...], factor: float) -> str:
    """Median, 95th percentile and most."""
    figures = median(values), quantiles(values, n=20)[-1], max(values)
    return "{:.2g} at the median, {:.2g} at the 95th percentile, {:.2g} at most".format(
        *(factor * one for one in figures)
    )


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


if __name__ == "__main__":
    main()
