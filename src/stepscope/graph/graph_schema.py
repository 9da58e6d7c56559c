"""The tables of a graph (tasks, links and threads), and its dependencies as one compressed table."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Times
from stepscope.trace.declaration import Column, Schema
from stepscope.trace.row_order import grouped
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES, TRACK_KINDS
from stepscope.trace.table import Table

NO_STEP, EARLIER = -1, -2  # values of tasks.step

EDGE_KINDS = (
    *("program_order", "stream_order", "launch", "synchronization", "communication", "handover", "data"),
)

TASKS = Schema(
    "tasks",
    "one task, sorted by thread, then in the order in which the thread runs them",
    (
        Column("thread", "i32", "threads.id", refers="threads"),
        Column("duration_ns", "i64", "how long it runs", "ns"),
        Column("gap_ns", "i64", "how long its thread is then busy without a recorded event", "ns"),
        Column("earliest_ns", "i64", "it starts no earlier, whatever its dependencies", "ns"),
        Column("event", "i32", "events.id; null for an inserted task", nullable=True),
        Column("name", "text", "name of its event"),
        Column("category", "text", "category of its event", values=CATEGORIES),
        Column("kind", "text", "what it computes", nullable=True, values=KERNEL_KINDS),
        Column("stage", "text", "stage of its event", nullable=True, values=STAGES),
        Column("module", "i32", "modules.id", nullable=True, refers="modules"),
        Column("step", "i32", "steps.step; -2 for work of a step before those in the file", nullable=True),
        Column("bytes", "i64", "bytes moved", "B", nullable=True),
        Column("mark", "i8", "1 where a step begins or the last one ends; its length is 0"),
        Column("priority", "i32", "of tasks that could start at once, the highest goes first"),
    ),
)

LINKS = Schema(
    "links",
    "one dependency between threads; the order within a thread is implicit",
    (
        Column("source", "i32", "tasks.id of the task that comes first", refers="tasks"),
        Column("target", "i32", "tasks.id of the task that waits for it", refers="tasks"),
        Column("kind", "text", "one of " + ", ".join(EDGE_KINDS[2:]), values=EDGE_KINDS),
        Column("lag_ns", "i64", "from the source's end (a launch's start) to the target", "ns"),
    ),
)

THREADS = Schema(
    "threads",
    "a CPU thread, a device stream or a channel; it runs one task at a time",
    (
        Column("kind", "text", "one of " + ", ".join(TRACK_KINDS), values=TRACK_KINDS),
        Column("name", "text", "name of its track"),
        Column("track", "i32", "tracks.id; null for an inserted thread", nullable=True),
        Column("device", "i32", "device index", nullable=True),
        Column("ordered", "i8", "1 if its tasks run in order, 0 if they run as they become ready"),
        Column("main", "i8", "1 for the thread of the training loop"),
        Column("rank", "i32", "its rank"),
    ),
)


PROGRAM, STREAM, LAUNCH, SYNC, COMMUNICATION, HANDOVER, DATA = range(len(EDGE_KINDS))


@dataclass(frozen=True)
class Edges:
    """Which tasks wait for which, by source: task u has rows `first[u]` to `first[u + 1] - 1`."""

    first: Ids  # int64, shape (tasks + 1,)
    source: Ids32  # int32, shape (edges,), tasks.id
    target: Ids32  # int32, shape (edges,), tasks.id
    delay_ns: Times  # int64, from the start of the source to the earliest start of the target


def edges_of(tasks: Table, links: Table, threads: Table) -> Edges:
    """The links, and an edge between neighbors on each ordered thread.

    The delay of a launch counts from the start of the call, since work may begin before the call
    returns. Other links count from the end of their source, and the order within a thread from the
    end of the gap after the source.
    """
    thread = tasks["thread"]
    follows = (thread[1:] == thread[:-1]) & (threads["ordered"][thread[1:]] > 0)
    before = np.flatnonzero(follows).astype(np.int32)
    source = np.concatenate([before, links["source"]])
    target = np.concatenate([before + 1, links["target"]]).astype(np.int32)
    duration = tasks["duration_ns"]
    length = np.where(links["kind"] == LAUNCH, 0, duration[links["source"]])
    between = np.maximum(links["lag_ns"] + length, 0)
    delay = np.concatenate([(duration + tasks["gap_ns"])[before], between])
    sorting, first = grouped(source, len(tasks))
    return Edges(first, source[sorting], target[sorting], delay[sorting])
