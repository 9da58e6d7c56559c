"""Where the time of reading a trace goes: wall and CPU time, and growth of memory, by phase.

    python benchmarks/read_phases.py FILE [--least SECONDS]

A phase is a function that the reader or the annotation calls; its time includes that of the phases
indented below it. CPU time is that of all threads, so it may exceed the wall time.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PHASES = {
    "read.chrome.trace_events": (
        "_read_parts",
        "_parts",
        "slices_of",
        "event_columns",
        "track_columns",
        "arrows_of",
        "instant_columns",
        "counter_columns",
        "memory_columns",
        "EventColumns",
        "build",
    ),
    "trace.builder": (
        "_sorted",
        "_from_zero",
        "rounding",
        "_with_nesting",
        "parents",
        "self_times",
        "_tied",
        "_around",
        "_match_tails",
    ),
    "facts.load": ("_annotated",),
    "facts.annotate.ranks": ("merged_ranks", "looks_merged"),
    "facts.annotate": (
        "link_launches",
        "mark_communication",
        "link_backward",
        "find_iterations",
        "find_steps",
        "assign_stages",
        "classify_kernels",
        "attribute_modules",
        "find_runs",
        "find_idle",
    ),
}


@dataclass
class Node:
    """One phase and those inside it."""

    name: str
    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    grown_mb: float = 0.0
    inner: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        return self.inner.setdefault(name, Node(name))


class Phases:
    """Times functions that are replaced in their modules."""

    def __init__(self) -> None:
        self.root = Node("all")
        self._stack = [self.root]

    def watch(self, module: Any, name: str) -> None:
        """Replace a function of a module by one that is timed."""
        setattr(module, name, self._timed(getattr(module, name), name.lstrip("_")))

    def _timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            node = self._stack[-1].child(name)
            self._stack.append(node)
            wall, cpu, memory = time.perf_counter(), time.process_time(), anonymous_mb()
            try:
                return function(*args, **options)
            finally:
                self._stack.pop()
                node.calls += 1
                node.wall_s += time.perf_counter() - wall
                node.cpu_s += time.process_time() - cpu
                node.grown_mb += anonymous_mb() - memory

        return timed


def anonymous_mb() -> float:
    """Memory of this process that is in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))


def show(node: Node, least_s: float, depth: int = 0) -> None:
    if node.wall_s >= least_s:
        print(
            f"{'  ' * depth + node.name:36}{node.wall_s:9.3f}{node.cpu_s:9.3f}"
            f"{node.grown_mb:10.0f}{node.calls:8}"
        )
        for inner in node.inner.values():
            show(inner, least_s, depth + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--least", type=float, default=0.01, help="seconds of a phase to show")
    args = parser.parse_args()
    phases = Phases()
    for name, functions in PHASES.items():
        module = importlib.import_module(f"stepscope.{name}")
        for function in functions:
            phases.watch(module, function)
    import stepscope

    opened = phases._timed(stepscope.open, "open")
    opened(args.file, cache=False)
    print(f"{'':36}{'wall s':>9}{'CPU s':>9}{'grown MB':>10}{'calls':>8}")
    show(next(iter(phases.root.inner.values())), args.least)
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
