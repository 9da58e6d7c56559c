"""How much of a step no dependency explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.graph.graph import Graph
from stepscope.trace.order import ends_run


def without_residue(graph: Graph) -> Graph:
    """The graph without the delays on devices that only measurement tells.

    A replay keeps what no dependency explains as a constant: a late start behind a launch, a gap
    between kernels. Here work follows its launch by the median latency at most, and what its stream
    did before by the median gap. How far the simulation of this misses the measured step is how far
    the known dependencies do.
    """
    launch = graph.links.text("kind").mask("launch")
    lag = graph.links["lag_ns"].copy()
    if launch.any():
        lag[launch] = np.minimum(lag[launch], int(np.median(lag[launch])))
    gap = graph.tasks["gap_ns"].copy()
    thread = graph.tasks["thread"]
    between = graph.on_device & ~ends_run(thread)
    if between.any():
        gap[between] = np.minimum(gap[between], int(np.median(gap[between])))
    links = graph.links.with_columns(lag_ns=lag)
    return replace(graph.with_tasks(gap_ns=gap), links=links)
