"""The unchanged replay against the measured step: `python benchmarks/replay.py FOLDER PATTERN…`.

Prints a table in Markdown. *in a row* replays consecutive steps as one graph, *on its own* each
step as a separate graph. The last column leaves out what no dependency explains: every kernel
then follows its launch by the median latency at most, and its predecessor by the median gap. A
folder is replayed as one graph of all its ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.facts.load import open as open_trace
from stepscope.graph import Graph, build_graph, build_ranks, simulate, without_unexplained_delays
from stepscope.trace.trace import Trace


def errors(graph: Graph) -> Floats:
    """Relative errors of the steps."""
    return np.asarray(simulate(graph).step_ns / graph.window.measured_ns - 1)


def on_their_own(trace: Trace, steps: tuple[int, ...]) -> Floats:
    """Relative error of each step as a separate graph."""
    return np.concatenate([errors(build_graph(trace, steps=(step, step))) for step in steps])


def line(file: Path, folder: Path) -> tuple[str, Floats]:
    """One row of the table, and the errors of the steps in a row and on their own."""
    trace = open_trace(file)
    graph = build_ranks(trace)
    row = errors(graph)
    own = on_their_own(trace, graph.window.steps) if file.is_file() else row
    explained = simulate(without_unexplained_delays(graph)).step_ns.sum() / graph.window.measured_ns.sum() - 1
    cells = (
        str(file.relative_to(folder)).removesuffix(".gz").removesuffix(".json"),
        str(len(row)),
        f"{graph.window.measured_ns.mean() / 1e6:.3f}",
        *(f"{abs(part).mean():.3%} / {abs(part).max():.3%}" for part in (row, own)),
        f"{explained:+.1%}",
    )
    return "| " + " | ".join(cells) + " |", np.concatenate([row, own])


def main(folder: Path, patterns: list[str]) -> None:
    """Print the table and, below it, the mean and the greatest error of all."""
    print(
        "| trace | steps | measured, ms | in a row, mean / max | on its own, mean / max "
        "| only dependencies |\n|---|---:|---:|---:|---:|---:|"
    )
    everything = []
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        text, found = line(file, folder)
        print(text)
        everything.append(found)
    whole = np.abs(np.concatenate(everything))
    print(f"\nmean {whole.mean():.3%}, greatest {whole.max():.3%} of {len(whole)} replays")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
