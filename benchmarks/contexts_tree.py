"""The time to build, invert and draw the calling-context tree of a large trace.

    python benchmarks/contexts_tree.py TRACE COPIES

The trace is repeated as COPIES ranks, to reach any size. Each figure is the median of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import msgspec

import stepscope
from stepscope.facts.contexts import aligned, bottom_up, build_contexts
from stepscope.facts.contexts.flame import flame
from stepscope.trace.concat import concat, of_rank

_TIMES = 5


def main(path: str, copies: int) -> None:
    """Print one line for each operation."""
    one = stepscope.open(path)
    trace = concat([of_rank(one, rank) for rank in range(copies)])
    tree = build_contexts(trace)
    turned = bottom_up(tree, "cpu_ns")
    print(f"{len(trace.events):,} events, {len(tree):,} nodes, {len(turned):,} upside down")
    for name, call in {
        "build": lambda: build_contexts(trace),
        "bottom up": lambda: bottom_up(tree, "cpu_ns"),
        "alignment": lambda: aligned(tree, tree),
        "flame boxes": lambda: flame(tree, "cpu"),
        "flame boxes, upside down": lambda: flame(turned, "cpu", most=40_000),
    }.items():
        print(f"{name:<26}{_seconds(call):8.3f} s")
    for name, shown in (("flame boxes", tree), ("flame boxes, upside down", turned)):
        size = len(msgspec.json.encode(flame(shown, "cpu", most=40_000)))
        print(f"{name:<26}{size / 1e6:8.2f} MB of JSON")


def _seconds(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
