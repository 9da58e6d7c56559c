"""One number per node, as a table or a flame graph shows it: a metric and one of its statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats
from stepscope.contexts.tree import ContextTree
from stepscope.errors import TraceError

# name: (metric, statistic, meaning)
MEASURES = {
    "cpu": ("cpu_ns", "sum", "CPU time"),
    "device": ("device_ns", "sum", "device time"),
    "compiled": ("compiled_ns", "sum", "compiled operations, in windows"),
    "calls": ("cpu_ns", "count", "calls"),
    "work": ("device_ns", "count", "device operations"),
    "launches": ("launches", "count", "launches"),
    "delay": ("launch_delay_ns", "sum", "launch delay"),
    "allocated": ("allocated_bytes", "sum", "memory allocated"),
    "freed": ("freed_bytes", "sum", "memory freed"),
    "allocations": ("allocated_bytes", "count", "allocations"),
    "stalls": ("stalls", "sum", "stalls"),
    "latency": ("latency_stalls", "sum", "stalls with nothing issued"),
    "running": ("thread_cpu_ns", "sum", "CPU time without waiting"),
    "sampled": ("sampled_cpu_ns", "sum", "CPU time, sampled"),
    "elapsed": ("sampled_real_ns", "sum", "elapsed time, sampled"),
}


@dataclass(frozen=True)
class Measure:
    """One number per node.

    Attributes:
        name: the name given to `measure`.
        metric: the tree's metric that it is taken from.
        meaning: a label of two or three words.
        unit: `ns`, `B`, or empty for a number.
        own, inclusive: of the node itself, and of its whole subtree; float64, shape (nodes,).
    """

    name: str
    metric: str
    meaning: str
    unit: str
    own: Floats
    inclusive: Floats


def measure(tree: ContextTree, name: str) -> Measure:
    """One number per node, by the name of a measure or of one of the tree's metrics.

    Raises:
        TraceError: if the tree has no such metric.
    """
    metric, statistic, meaning = MEASURES.get(name, (name, "sum", name))
    if metric not in tree.metrics:
        known = ", ".join(measures(tree)) or "none"
        source = tree.source or "the tree"
        raise TraceError(f"no metric {name!r}; {source} has {known}")
    own, whole = tree.own(metric), tree.inclusive(metric)
    return Measure(
        name=name,
        metric=metric,
        meaning=meaning,
        unit=tree.metric(metric).unit if statistic == "sum" else "",
        own=getattr(own, statistic).astype(np.float64),
        inclusive=getattr(whole, statistic).astype(np.float64),
    )


def measures(tree: ContextTree) -> list[str]:
    """The names of the measures that the tree has samples of, the standard ones first."""
    standard = [name for name, (metric, _, _) in MEASURES.items() if tree.has(metric)]
    covered = {metric for metric, _, _ in MEASURES.values()} | {"call_ns"}
    return standard + [name for name in tree.metrics if name not in covered and tree.has(name)]


def default_measure(tree: ContextTree) -> str:
    """The measure to show first: device time if there is any, else samples, else CPU time.

    Samples cover Python code, which operator times do not.
    """
    known = measures(tree)
    return next((name for name in ("device", "elapsed", "sampled") if name in known), "cpu")
