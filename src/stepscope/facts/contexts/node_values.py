"""What a table or a flame graph shows of each node: one number, a short label, the hot path."""

import math
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Floats, Ids
from stepscope.base.kernel_names import short_kernel
from stepscope.errors import TraceError
from stepscope.facts.annotate.range_names import ENGINE, range_label
from stepscope.facts.contexts.metrics import LAUNCH_METRICS
from stepscope.facts.contexts.tree import ContextTree

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
_DEVICE = ("kernel", "communication")
_WIDEST = 200  # characters: no table or graph has room for more
_TOP = "<module>"  # Python's name for code outside functions


class TreeMeasure(msgspec.Struct, frozen=True):
    """One number per node."""

    name: str  # the name given to `measure`
    metric: str  # the tree's metric that it is taken from
    meaning: str  # a label of two or three words
    unit: str  # `ns`, `B`, or empty for a number
    own: Floats  # of the node itself, float64, shape (nodes,)
    inclusive: Floats  # of its whole subtree, float64, shape (nodes,)


def measure(tree: ContextTree, name: str) -> TreeMeasure:
    """One number per node, by the name of a measure or of one of the tree's metrics; raises TraceError if the
    tree has no such metric."""
    metric, statistic, meaning = MEASURES.get(name, (name, "sum", name))
    if metric in LAUNCH_METRICS and metric in tree.metrics:
        raise TraceError(f"{name} does not add up over launches; its statistics: contexts --json")
    if metric not in tree.metrics:
        raise tree.without(name, measures(tree))
    own, whole = tree.own(metric), tree.inclusive(metric)
    return TreeMeasure(
        name=name,
        metric=metric,
        meaning=meaning,
        unit=tree.metric(metric).unit if statistic == "sum" else "",
        own=getattr(own, statistic).astype(np.float64),
        inclusive=getattr(whole, statistic).astype(np.float64),
    )


def measures(tree: ContextTree) -> list[str]:
    """The names of the measures that the tree has samples of and that add up, the standard ones first."""
    standard = [name for name, (metric, _, _) in MEASURES.items() if tree.has(metric)]
    covered = {"call_ns", *LAUNCH_METRICS, *(metric for metric, _, _ in MEASURES.values())}
    return standard + [name for name in tree.metrics if name not in covered and tree.has(name)]


def plain_numbers(values: Array) -> list[Any]:
    """Values as JSON shows them: integers where they are whole, None where they are unknown."""
    return [
        (int(value) if value == int(value) else value) if math.isfinite(value) else None
        for value in values.tolist()
    ]


def default_measure(tree: ContextTree) -> str:
    """The measure to show first: device time if there is any, else samples, else CPU time.

    Samples cover Python code, which operator times do not.
    """
    available = measures(tree)
    return next((name for name in ("device", "elapsed", "sampled") if name in available), "cpu")


def hot_path(tree: ContextTree, by: str, start: int = 0, least: float = 0.5) -> list[int]:
    """The nodes of the hot path by a measure, as `measure` takes it: from each to its largest child.

    It continues while the child has at least the share `least` of its parent.
    """
    value = measure(tree, by).inclusive
    path = [start]
    while len(children := tree.children(path[-1])):
        child = int(children[np.argmax(value[children])])
        if value[child] <= 0 or value[child] < least * value[path[-1]]:
            break
        path.append(child)
    return path


def hotspots(tree: ContextTree, by: str, least: float = 0.1) -> Ids:
    """The nodes whose own value is at least a share of the total, the largest first.

    Source: DEEPCONTEXT section 4.3, hotspot identification.
    """
    values = measure(tree, by)
    hot = np.flatnonzero((values.own > 0) & (values.own >= least * values.inclusive[0]))
    return hot[np.argsort(-values.own[hot], kind="stable")]


def short_label(tree: ContextTree, node: int, width: int = _WIDEST) -> str:
    """The label of a node in a table or a graph, without redundant prefixes."""
    kind = tree.nodes.text("kind")[node] or ""
    file, line = tree.nodes.text("file")[node] or "", int(tree.nodes["line"][node])
    name = _relative(tree, node) if kind == "module" else _short(tree.label(node), kind)
    if file and kind != "module":
        place = f"{_base(file)}{f':{line}' if line >= 0 else ''}"
        name = place if name == _TOP else f"{name} {place}"
    return name if len(name) <= width else name[: max(width - 1, 1)] + "…"


def _relative(tree: ContextTree, node: int) -> str:
    """A module's path relative to the enclosing module."""
    name, kinds = tree.label(node), tree.nodes.text("kind")
    above = int(tree.parent[node])
    while above >= 0 and kinds[above] != "module":
        above = int(tree.parent[above])
    around = f"{tree.label(above)}." if above >= 0 else ""
    return name[len(around) :] if around and name.startswith(around) else name


@lru_cache(maxsize=1 << 16)
def _short(name: str, kind: str) -> str:
    if kind in _DEVICE:
        return short_kernel(name, _WIDEST)
    return range_label(name.removeprefix(ENGINE).removeprefix("torch::autograd::")) or name


def _base(file: str) -> str:
    """The file name without folders; for a package's `__init__.py`, with the package."""
    folder, _, name = file.replace("\\", "/").rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if folder and name == "__init__.py" else name
