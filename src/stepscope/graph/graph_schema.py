"""The tables of a graph: tasks, links and threads, declared like the trace's tables."""

from __future__ import annotations

from stepscope.trace.declaration import Column, Schema
from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES, TRACK_KINDS

EDGE_KINDS = (
    "program_order",
    "stream_order",
    "launch",
    "synchronization",
    "communication",
    "handover",
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
        Column("step", "i32", "steps.step", nullable=True),
        Column("bytes", "i64", "bytes moved", "B", nullable=True),
        Column(
            "mark",
            "i8",
            "1 where a step begins or the last one ends; its length is 0",
        ),
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
