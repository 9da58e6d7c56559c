"""All dependencies of a graph as one compressed table, including the order within threads.

Which tasks depend on which is sorted once; graphs that only differ in times share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Codes8, Ids, Ids32, Times
from stepscope.graph.graph_schema import EDGE_KINDS
from stepscope.trace.row_order import grouped
from stepscope.trace.table import Table

PROGRAM, STREAM, LAUNCH, SYNC, COMMUNICATION, HANDOVER = range(len(EDGE_KINDS))


@dataclass(frozen=True)
class Topology:
    """Which tasks wait for which, by source: task u has rows `first[u]` to `first[u + 1] - 1`.

    Attributes:
        first: int64, shape (tasks + 1,).
        source, target: int32, shape (edges,), tasks.id.
        kind: int8, index into `EDGE_KINDS`.
        link: int32, the row of the graph's links, or -1 for neighbors on a thread.
    """

    first: Ids
    source: Ids32
    target: Ids32
    kind: Codes8
    link: Ids32


@dataclass(frozen=True)
class Edges(Topology):
    """Dependencies with their delays.

    Attributes:
        delay_ns: int64, from the start of the source to the earliest start of the target.
    """

    delay_ns: Times


def topology(tasks: Table, links: Table, threads: Table) -> Topology:
    """The links, and an edge between neighbors on each ordered thread."""
    thread = tasks["thread"]
    follows = (thread[1:] == thread[:-1]) & (threads["ordered"][thread[1:]] > 0)
    before = np.flatnonzero(follows).astype(np.int32)
    order = np.where(threads["device"][thread[before]] < 0, PROGRAM, STREAM)
    source = np.concatenate([before, links["source"]])
    target = np.concatenate([before + 1, links["target"]]).astype(np.int32)
    kind = np.concatenate([order, links["kind"]]).astype(np.int8)
    link = np.concatenate([np.full(len(before), -1), np.arange(len(links))]).astype(np.int32)
    sorting, first = grouped(source, len(tasks))
    return Topology(first, source[sorting], target[sorting], kind[sorting], link[sorting])


def with_delays(known: Topology, tasks: Table, links: Table) -> Edges:
    """The edges of a topology with the delays of these tasks and links.

    The delay of a launch counts from the start of the call, since work may begin before the call
    returns. Other links count from the end of their source, and the order within a thread from the
    end of the gap after the source.
    """
    duration = tasks["duration_ns"][known.source]
    delay = duration + tasks["gap_ns"][known.source]
    linked = known.link >= 0
    length = np.where(known.kind[linked] == LAUNCH, 0, duration[linked])
    delay[linked] = np.maximum(links["lag_ns"][known.link[linked]] + length, 0)
    return Edges(**vars(known), delay_ns=delay)
