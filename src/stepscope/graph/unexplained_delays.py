"""Delays that no dependency explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.graph.graph import Graph
from stepscope.trace.row_order import ends_run


def without_unexplained_delays(graph: Graph) -> Graph:
    """The graph without device delays that were measured but not explained.

    A replay keeps unexplained delays as constants: a late start after a launch, a gap between
    kernels. Here they are limited to the median launch latency and the median gap. The error of
    simulating this graph shows how well the known dependencies explain the measured step.
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
