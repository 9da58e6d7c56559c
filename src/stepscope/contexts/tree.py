"""The calling-context tree: a table of nodes in preorder, and what was measured at each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.contexts.check import check_tree
from stepscope.contexts.metrics import METRICS, Metric
from stepscope.contexts.paths import levels, subtree_sizes
from stepscope.contexts.stats import Stats
from stepscope.errors import TraceError
from stepscope.trace.nesting import depths
from stepscope.trace.table import Table, Text

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Note:
    """Something that is not in the tree, or not where one would look for it."""

    code: str
    message: str
    count: int


@dataclass(frozen=True)
class ContextTree:
    """What ran, by the path of calls that led to it; node 0 is the root.

    Attributes:
        nodes: the table of nodes (`contexts`), in preorder.
        metrics: for each metric the node's own samples; see `inclusive` for all below it too.
        known: what the metrics are; those of `METRICS` need not be told.
        event_node: the node of each event of the trace it was built from, int64, shape (events,),
            -1 for an event that has none; None where it was not built from events.
        source: the file it is of.
        notes: what is not in the tree, or not where one would look for it.

    Example:
        >>> tree = build_contexts(stepscope.open("trace.json.gz"))  # doctest: +SKIP
        >>> hot = tree.inclusive("device_ns").sum.argsort()[::-1]  # doctest: +SKIP
        >>> tree.label(hot[0]), tree.path(hot[0])  # doctest: +SKIP
    """

    nodes: Table
    metrics: Mapping[str, Stats]
    known: Mapping[str, Metric] = field(default_factory=dict)
    event_node: Ids | None = None
    source: str = ""
    notes: tuple[Note, ...] = ()
    _sums: dict[str, Stats] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.nodes)

    # -- shape

    @cached_property
    def parent(self) -> Ids:
        """The node above each node, -1 at the root, shape (nodes,)."""
        return self.nodes["parent"].astype(np.int64)

    @cached_property
    def depth(self) -> NDArray[np.int32]:
        """How many nodes are above each node, shape (nodes,)."""
        return depths(self.nodes["parent"])

    @cached_property
    def end(self) -> Ids:
        """Node i and all below it are the rows i to end[i] - 1, shape (nodes,)."""
        end: Ids = np.arange(len(self)) + subtree_sizes(self.parent)
        return end

    def children(self, node: int) -> Ids:
        """The nodes directly below one."""
        below: Ids = np.flatnonzero(self.parent[node : self.end[node]] == node) + node
        return below

    def subtree(self, node: int) -> Ids:
        """A node and all below it."""
        return np.arange(node, self.end[node])

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        found = [int(node)]
        while self.parent[found[-1]] >= 0:
            found.append(int(self.parent[found[-1]]))
        return found[::-1]

    def label(self, node: int) -> str:
        """The name of a node; that of the root is `all`."""
        return self.nodes.text("name")[int(node)] or ("" if node else "all")

    # -- metrics

    def metric(self, name: str) -> Metric:
        """What a metric is; raises TraceError where the tree has none of that name."""
        self.own(name)
        return self.known.get(name) or METRICS.get(name) or Metric(name, "", name)

    def own(self, name: str) -> Stats:
        """The samples taken at each node itself.

        Raises:
            TraceError: if the tree has no such metric.
        """
        if name not in self.metrics:
            raise TraceError(
                f"no metric is called {name!r} here; {self.source or 'the tree'} has "
                + (", ".join(self.metrics) or "none")
            )
        return self.metrics[name]

    def has(self, name: str) -> bool:
        """Whether anything was measured under that name."""
        return name in self.metrics and bool(self.metrics[name].count.any())

    def inclusive(self, name: str) -> Stats:
        """The samples taken at each node and below it, as DEEPCONTEXT propagates them (4.2).

        A metric that does not add up (`call_ns`) has the node's own samples only.
        """
        if not self.metric(name).additive:
            return self.own(name)
        if name not in self._sums:
            self._sums[name] = _propagated(self.own(name), self.parent, self.depth)
        return self._sums[name]

    def total(self, name: str) -> float:
        """The sum of all samples, 0 where nothing was measured under that name."""
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
        """The nodes that pass every test given.

        Args:
            name: a regular expression found in the node's name.
            kind: one kind or several.
            file: a regular expression found in its file.
            stage: its stage.
            via: `call`, `backward` or `launch`.
            under: a node; it and those below it.

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

    def nearest(self, wanted: NDArray[np.integer] | Mask) -> Ids:
        """For each node the innermost node of its path, itself included, that is in `wanted`.

        Args:
            wanted: node ids, or a mask of shape (nodes,).

        Returns:
            int64, shape (nodes,), -1 where none is.
        """
        chosen = np.zeros(len(self), np.bool_)
        chosen[wanted] = True
        found = np.where(chosen, np.arange(len(self)), -1)
        for rows in levels(self.depth)[1:]:
            inherited = found[self.parent[rows]]
            found[rows] = np.where(chosen[rows], rows, inherited)
        return found

    def events_of(self, node: int, below: bool = True) -> Ids:
        """The trace's events that went into a node (and those below it)."""
        if self.event_node is None:
            return np.zeros(0, np.int64)
        last = self.end[node] if below else node + 1
        return np.flatnonzero((self.event_node >= node) & (self.event_node < last))

    def check(self) -> ContextTree:
        """The tree itself, if it holds together.

        Raises:
            AssertionError: if nodes are out of order, a sum is lost, or calls inside a call take
                longer than it does.
        """
        check_tree(self)
        return self


def _matches(column: Text, pattern: str) -> Mask:
    found = re.compile(pattern)
    return column.where(lambda text: bool(found.search(text)))


def _propagated(own: Stats, parent: Ids, depth: NDArray[np.integer]) -> Stats:
    """Statistics of the samples at and below each node."""
    count, total, low, high = own.count.copy(), own.sum.copy(), own.min.copy(), own.max.copy()
    low[count == 0], high[count == 0] = np.inf, -np.inf
    rising = list(reversed(levels(depth)[1:]))
    for rows in rising:
        above = parent[rows]
        np.add.at(count, above, count[rows])
        np.add.at(total, above, total[rows])
        with np.errstate(invalid="ignore"):  # NaN, where a recorder does not tell
            np.minimum.at(low, above, low[rows])
            np.maximum.at(high, above, high[rows])
    mean = total / np.maximum(count, 1)
    squares = own.squares + own.count * (own.mean - mean) ** 2
    for rows in rising:
        above = parent[rows]
        away = mean[rows] - mean[above]
        np.add.at(squares, above, squares[rows] + count[rows] * away * away)
    none = count == 0
    return Stats(count, total, np.where(none, 0.0, low), np.where(none, 0.0, high), squares)
