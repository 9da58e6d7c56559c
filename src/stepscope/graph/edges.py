"""All dependencies of a graph as one compressed table, including the order within threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Codes8, Ids, Ids32, Times
from stepscope.graph.graph_schema import EDGE_KINDS
from stepscope.trace.table import Table

PROGRAM, STREAM, LAUNCH, SYNC, COMMUNICATION, HANDOVER = range(len(EDGE_KINDS))


@dataclass(frozen=True)
class Edges:
    """Dependencies by source: task u has rows `first[u]` to `first[u + 1] - 1`.

    Attributes:
        first: int64, shape (tasks + 1,).
        source, target: int32, shape (edges,), tasks.id.
        kind: int8, index into `EDGE_KINDS`.
        delay_ns: int64, from the start of the source to the earliest start of the target.
    """

    first: Ids
    source: Ids32
    target: Ids32
    kind: Codes8
    delay_ns: Times


def all_edges(tasks: Table, links: Table, threads: Table) -> Edges:
    """The links, and an edge between neighbors on each ordered thread.

    The delay of a launch counts from the start of the call, since work may begin before the call
    returns. Other links count from the end of their source, and the order within a thread from the
    end of the gap after the source.
    """
    thread = tasks["thread"]
    follows = (thread[1:] == thread[:-1]) & (threads["ordered"][thread[1:]] > 0)
    before = np.flatnonzero(follows).astype(np.int32)
    order = np.where(threads["device"][thread[before]] < 0, PROGRAM, STREAM)
    occupied = tasks["duration_ns"] + tasks["gap_ns"]
    source = np.concatenate([before, links["source"]])
    target = np.concatenate([before + 1, links["target"]]).astype(np.int32)
    kind = np.concatenate([order, links["kind"]]).astype(np.int8)
    length = np.where(links["kind"] == LAUNCH, 0, tasks["duration_ns"][links["source"]])
    delay = np.concatenate([occupied[before], np.maximum(links["lag_ns"] + length, 0)])
    sorting = np.argsort(source, kind="stable")
    first = np.searchsorted(source[sorting], np.arange(len(tasks) + 1))
    return Edges(first, source[sorting], target[sorting], kind[sorting], delay[sorting])
