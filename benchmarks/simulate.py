"""Simulation time against tasks: `python benchmarks/simulate.py` (median of 5, compiled before)."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from stepscope.graph import Graph, simulate
from stepscope.graph.graph import Window
from stepscope.graph.graph_schema import LINKS, TASKS, THREADS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

SIZES = (10_000, 50_000, 100_000, 1_000_000)
RUNS = 5


def training_step(tasks: int) -> Graph:
    """Two CPU threads and four streams; every second CPU task launches a kernel."""
    random = np.random.default_rng(0)
    cpu = tasks * 2 // 3
    thread = np.concatenate([np.sort(np.arange(cpu) % 2), np.sort(np.arange(tasks - cpu) % 4) + 2])
    source = np.arange(tasks - cpu) * 2
    target = np.arange(cpu, tasks)
    launch = Text.constant("launch", len(source))
    return Graph(
        Table(TASKS, {"thread": thread, "duration_ns": random.integers(1, 9000, tasks)}),
        Table(LINKS, {"source": source, "target": target, "kind": launch}),
        Table(THREADS, {"name": ["t"] * 6, "device": [-1] * 2 + [0] * 4, "ordered": [1] * 6}),
        Trace({}),
        Window(0, (0,), np.zeros(2, np.int64), 0, 0),
    )


def seconds(graph: Graph) -> float:
    """Time of one simulation, its edges built again as after a change."""
    fresh = graph.with_tasks()
    begin = perf_counter()
    simulate(fresh)
    return perf_counter() - begin


def main() -> None:
    """Print one line a size."""
    simulate(training_step(10))
    for size in SIZES:
        graph = training_step(size)
        time = median(seconds(graph) for _ in range(RUNS))
        print(f"{size:>9,} tasks  {time * 1e3:8.1f} ms  {time / size * 1e9:6.0f} ns a task")


if __name__ == "__main__":
    main()
