"""The calling-context tree: a table of nodes in preorder, with metrics at each node."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids, Ids32, IntArray, Mask
from stepscope.errors import TraceError, name_hint
from stepscope.facts.contexts.call_paths import levels, subtree_sizes
from stepscope.facts.contexts.metrics import METRICS, Metric, SampleStats
from stepscope.trace.nesting import depths, holds, innermost
from stepscope.trace.table import Table, Text


class Note(msgspec.Struct, frozen=True):
    """Something that the tree leaves out, or shows in an unexpected place."""

    code: str
    message: str
    count: int


@dataclass(frozen=True)
class ContextTree:
    """What ran, by call path; node 0 is the root."""

    nodes: Table  # the table of nodes (`contexts`), in preorder
    # each metric's samples at the node itself; `inclusive` adds those below it
    metrics: Mapping[str, SampleStats]
    # definitions of metrics that `METRICS` does not define
    known: Mapping[str, Metric] = field(default_factory=dict)
    # the node of each event of the trace, int64, shape (events,), -1 for none; None if the tree was not
    # built from events
    event_node: Ids | None = None
    source: str = ""  # the file that it was built from
    notes: tuple[Note, ...] = ()  # what the tree leaves out, or shows in an unexpected place
    _sums: dict[str, SampleStats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.nodes)

    # -- shape

    @cached_property
    def parent(self) -> Ids:
        """The parent of each node, -1 at the root, shape (nodes,)."""
        return self.nodes["parent"].astype(np.int64)

    @cached_property
    def depth(self) -> Ids32:
        """The number of ancestors of each node, shape (nodes,)."""
        return depths(self.nodes["parent"])

    @cached_property
    def end(self) -> Ids:
        """The subtree of node i is rows i to end[i] - 1; shape (nodes,)."""
        return np.arange(len(self)) + subtree_sizes(self.parent)

    def children(self, node: int) -> Ids:
        """The children of a node."""
        return np.flatnonzero(self.parent[node : self.end[node]] == node) + node

    def below(self, values: Mask | IntArray | Floats) -> Any:
        """The sum of some values, shape (nodes,), over the subtree of each node."""
        before = np.concatenate([[0], np.cumsum(values)])
        return before[self.end] - before[:-1]

    def subtree(self, node: int) -> Ids:
        """A node and its descendants."""
        return np.arange(node, self.end[node])

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        path = [int(node)]
        while self.parent[path[-1]] >= 0:
            path.append(int(self.parent[path[-1]]))
        return path[::-1]

    def label(self, node: int) -> str:
        """The name of a node; the root is called `all`."""
        return self.nodes.text("name")[int(node)] or ("" if node else "all")

    # -- metrics

    def metric(self, name: str) -> Metric:
        """The definition of a metric; raises TraceError if the tree does not have it."""
        self.own(name)
        return self.known.get(name) or METRICS.get(name) or Metric(name, "", name)

    def own(self, name: str) -> SampleStats:
        """The samples taken at each node itself; raises TraceError if the tree has no such metric."""
        if name not in self.metrics:
            raise self.without(name, self.metrics)
        return self.metrics[name]

    def without(self, name: str, available: Iterable[str]) -> TraceError:
        """The error that the tree does not have a metric, but the available ones; or none at all."""
        source = self.source or "the tree"
        if not self.metrics:
            return TraceError(f"nothing was measured in {source}: it holds no calls")
        return TraceError(f"{source} has no metric {name!r}; {name_hint(name, available)}")

    def has(self, name: str) -> bool:
        """Whether the tree has samples of a metric."""
        return name in self.metrics and bool(self.metrics[name].count.any())

    def inclusive(self, name: str) -> SampleStats:
        """The samples taken at each node and its descendants, as DEEPCONTEXT propagates them (4.2).

        For a metric that does not add up (`call_ns`), the node's own samples only.
        """
        if not self.metric(name).additive:
            return self.own(name)
        if name not in self._sums:
            self._sums[name] = _propagated(self.own(name), self.parent, self.depth)
        return self._sums[name]

    def total(self, name: str) -> float:
        """The sum of all samples of a metric, 0 without samples."""
        return float(self.metrics[name].sum.sum()) if name in self.metrics else 0.0

    # -- search

    def search(
        self,
        name: str | None = None,
        *,
        kind: str | Sequence[str] | None = None,
        file: str | None = None,
        stage: str | None = None,
        via: str | None = None,
        under: int | None = None,
    ) -> Ids:
        """The nodes that meet every given condition.

        Args:
            name: a regular expression to find in the node's name.
            kind: one or several kinds.
            file: a regular expression to find in the node's file.
            stage: the node's stage.
            via: `call`, `backward` or `launch`.
            under: only this node and its descendants.

        Returns:
            Node ids in preorder, int64.
        """
        keep: Mask = np.ones(len(self), np.bool_)
        for column, pattern in (("name", name), ("file", file)):
            if pattern is not None:
                keep &= _matches(self.nodes.text(column), pattern)
        for column, wanted in (("kind", kind), ("stage", stage), ("via", via)):
            if wanted is not None:
                values = (wanted,) if isinstance(wanted, str) else tuple(wanted)
                keep &= self.nodes.text(column).mask(*values)
        if under is not None:
            keep &= (np.arange(len(self)) >= under) & (np.arange(len(self)) < self.end[under])
        return np.flatnonzero(keep)

    def nearest(self, wanted: Mask) -> Ids:
        """For each node the innermost wanted node on its path, itself included; (nodes,), -1 for none."""
        return innermost(self.nodes["parent"], wanted).astype(np.int64)

    def leads_to(self, wanted: Mask) -> Mask:
        """Whether each node is wanted or has a wanted node below it, bool, shape (nodes,)."""
        return holds(self.nodes["parent"], wanted)


def _matches(column: Text, pattern: str) -> Mask:
    found = re.compile(pattern)
    return column.where(lambda text: bool(found.search(text)))


def _propagated(own: SampleStats, parent: Ids, depth: IntArray) -> SampleStats:
    """Statistics of the samples at each node and its descendants."""
    count, total, low, high = own.count.copy(), own.sum.copy(), own.min.copy(), own.max.copy()
    low[count == 0], high[count == 0] = np.inf, -np.inf
    rising = list(reversed(levels(depth)[1:]))
    for rows in rising:
        above = parent[rows]
        np.add.at(count, above, count[rows])
        np.add.at(total, above, total[rows])
        with np.errstate(invalid="ignore"):  # NaN where the recorder gives no value
            np.minimum.at(low, above, low[rows])
            np.maximum.at(high, above, high[rows])
    mean = total / np.maximum(count, 1)
    squares = own.squares + own.count * (own.mean - mean) ** 2
    for rows in rising:
        above = parent[rows]
        away = mean[rows] - mean[above]
        np.add.at(squares, above, squares[rows] + count[rows] * away * away)
    none = count == 0
    return SampleStats(count, total, np.where(none, 0.0, low), np.where(none, 0.0, high), squares)
