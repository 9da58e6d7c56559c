"""What a task, a link and a thread are, declared as the trace's tables are."""

from __future__ import annotations

from stepscope.trace.schema import CATEGORIES, KERNEL_KINDS, STAGES, TRACK_KINDS, Column, Schema

EDGE_KINDS = (
    "program_order",
    "stream_order",
    "launch",
    "synchronisation",
    "communication",
    "handover",
)

TASKS = Schema(
    "tasks",
    "one task, thread by thread and in each thread in the order in which it runs",
    (
        Column("thread", "i32", "threads.id", refers="threads"),
        Column("duration_ns", "i64", "how long it runs", "ns"),
        Column("gap_ns", "i64", "how long its thread is then busy with what no event tells", "ns"),
        Column("earliest_ns", "i64", "it starts no earlier, whatever it depends on", "ns"),
        Column("event", "i32", "events.id; null for an inserted task", nullable=True),
        Column("name", "text", "name of its event"),
        Column("category", "text", "category of its event", values=CATEGORIES),
        Column("kind", "text", "what it computes", nullable=True, values=KERNEL_KINDS),
        Column("stage", "text", "stage of its event", nullable=True, values=STAGES),
        Column("module", "i32", "modules.id", nullable=True, refers="modules"),
        Column("step", "i32", "steps.step", nullable=True),
        Column("bytes", "i64", "bytes moved", "B", nullable=True),
        Column("mark", "i8", "1 where a step begins or the last ends; such a task has no length"),
        Column("priority", "i32", "of tasks that could start at once, the highest goes first"),
    ),
)

LINKS = Schema(
    "links",
    "one dependency between two threads; the order within a thread needs no row",
    (
        Column("source", "i32", "tasks.id of what comes first", refers="tasks"),
        Column("target", "i32", "tasks.id of what waits for it", refers="tasks"),
        Column("kind", "text", "one of " + ", ".join(EDGE_KINDS[2:]), values=EDGE_KINDS),
        Column("lag_ns", "i64", "from the source's end (a launch's start) to the target", "ns"),
    ),
)

THREADS = Schema(
    "threads",
    "one thing that runs a task at a time: a CPU thread, a device stream or a channel",
    (
        Column("kind", "text", "one of " + ", ".join(TRACK_KINDS), values=TRACK_KINDS),
        Column("name", "text", "name of its track"),
        Column("track", "i32", "tracks.id; null for an inserted thread", nullable=True),
        Column("device", "i32", "device index", nullable=True),
        Column("ordered", "i8", "1 where its tasks run in their order, 0 as they become ready"),
        Column("main", "i8", "1 for the thread of the training loop"),
        Column("rank", "i32", "of which rank"),
    ),
)
