"""How much of a step no dependency explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.graph.graph import Graph


def without_residue(graph: Graph) -> Graph:
    """The graph without the delays on devices that only measurement tells.

    A replay keeps what no dependency explains as a constant: a late start behind a launch, a gap
    between kernels. Here work follows its launch by the median latency at most, and what its stream
    did before at once. How far the simulation of this misses the measured step is how far the known
    dependencies do.
    """
    launch = graph.links.text("kind").mask("launch")
    lag = graph.links["lag_ns"].copy()
    if launch.any():
        lag[launch] = np.minimum(lag[launch], int(np.median(lag[launch])))
    gap = np.where(graph.on_device, 0, graph.tasks["gap_ns"])
    links = graph.links.with_columns(lag_ns=lag)
    return replace(graph.with_tasks(gap_ns=gap), links=links)
