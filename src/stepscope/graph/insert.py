"""The primitive *insert*: tasks, links and threads that were not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.graph.edges import LAUNCH, SYNC
from stepscope.graph.graph import Graph
from stepscope.graph.schema import EDGE_KINDS, LINKS, TASKS, THREADS
from stepscope.trace.table import Table, Text

Ids = NDArray[np.int64]


def insert(
    graph: Graph, after: ArrayLike, names: Sequence[str], **columns: Any
) -> tuple[Graph, Ids]:
    """A graph with a further task behind each of `after`, on its thread.

    Args:
        graph: any graph.
        after: tasks.id, shape (n,); where several go behind one task, they keep their order.
        names: of the new tasks.
        columns: further columns of the new tasks, `duration_ns` above all; those left out are as in
            the task before, but have no gap, no event and no mark.

    Returns:
        The graph, and the numbers of the new tasks in it.

    Source: DAYDREAM section 4.4, figure 4.
    """
    place = np.asarray(after, np.int64)
    order = np.argsort(place, kind="stable")
    rows = np.insert(np.arange(len(graph)), place[order] + 1, place[order])
    new = np.empty(len(place), np.int64)
    new[order] = place[order] + 1 + np.arange(len(place))
    tasks = graph.tasks.take(rows)
    fresh = {"gap_ns": 0, "earliest_ns": 0, "event": -1, "mark": 0, "bytes": -1, **columns}
    changed: dict[str, Any] = {"name": _renamed(tasks.text("name"), new, names)}
    for name, values in fresh.items():
        changed[name] = _with_values(tasks, name, new, values)
    moved = np.ones(len(rows), np.bool_)
    moved[new] = False
    number = np.flatnonzero(moved)
    links = graph.links.with_columns(
        source=number[graph.links["source"]], target=number[graph.links["target"]]
    )
    return replace(graph, tasks=tasks.with_columns(**changed), links=links), new


def append(graph: Graph, thread: int, names: Sequence[str], **columns: Any) -> tuple[Graph, Ids]:
    """A graph with tasks at the end of a thread, which may have none yet; and their numbers."""
    end = int(np.searchsorted(graph.tasks["thread"], thread, side="right"))
    defaults = {"thread": thread, "event": -1, "category": "other", **columns}
    count = len(names)
    full = {
        name: Text.of([value] * count) if isinstance(value, str) else np.broadcast_to(value, count)
        for name, value in defaults.items()
    }
    new = Table(TASKS, {"name": Text.of(names), **full})
    parts = (graph.tasks.take(slice(0, end)), new, graph.tasks.take(slice(end, None)))  # type: ignore[arg-type]
    shift = np.where(np.arange(len(graph)) >= end, count, 0) + np.arange(len(graph))
    links = graph.links.with_columns(
        source=shift[graph.links["source"]], target=shift[graph.links["target"]]
    )
    return replace(graph, tasks=_stacked(parts), links=links), np.arange(end, end + count)


def add_links(
    graph: Graph, source: ArrayLike, target: ArrayLike, kind: str, lag_ns: ArrayLike = 0
) -> Graph:
    """A graph with further dependencies of one kind."""
    source, target = np.atleast_1d(source), np.atleast_1d(target)
    old = graph.links
    columns: dict[str, Any] = {
        "source": np.concatenate([old["source"], source]),
        "target": np.concatenate([old["target"], target]),
        "lag_ns": np.concatenate([old["lag_ns"], np.broadcast_to(lag_ns, len(source))]),
    }
    codes = np.full(len(source), EDGE_KINDS.index(kind), np.int8)
    columns["kind"] = Text(np.concatenate([old["kind"], codes]), EDGE_KINDS)
    return replace(graph, links=Table(LINKS, columns))


def add_thread(
    graph: Graph, name: str, kind: str, device: int, ordered: bool = True
) -> tuple[Graph, int]:
    """A graph with a further thread, and its number.

    Args:
        ordered: whether its tasks run in their order, or as they become ready.
    """
    old = graph.threads
    columns: dict[str, Any] = {
        column: np.append(old[column], value)
        for column, value in (("track", -1), ("device", device), ("ordered", ordered), ("main", 0))
    }
    for column, text in (("name", name), ("kind", kind)):
        columns[column] = Text.of([*old.text(column), text])
    return replace(graph, threads=Table(THREADS, columns)), len(old)


def insert_device_work(
    graph: Graph, call_after: int, work_after: int, name: str, duration_ns: int, **columns: Any
) -> Graph:
    """A graph with a kernel behind another one, and the call that launches it behind a CPU task.

    The call takes as long as the median launch of the graph, and the kernel follows as soon. A CPU
    call that waited for the kernel before waits for the new one.
    """
    launches = graph.links.take(graph.links["kind"] == LAUNCH)
    length = graph.tasks["duration_ns"][launches["source"]]
    call_ns = int(np.median(length)) if len(length) else 0
    lag_ns = int(np.median(launches["lag_ns"])) if len(launches) else 0
    places, times = [call_after, work_after], np.array([call_ns, duration_ns])
    graph, new = insert(graph, places, ["launch", name], duration_ns=times, **columns)
    graph = _waited_for(graph, int(new[1]) - 1, int(new[1]))
    return add_links(graph, new[:1], new[1:], "launch", lag_ns)


def _waited_for(graph: Graph, before: int, new: int) -> Graph:
    """A CPU call that waited for the stream's last work waits for the new work behind it."""
    links = graph.links
    waits = (links["source"] == before) & (links["kind"] == SYNC)
    waits &= ~graph.on_device[links["target"]]
    moved = np.where(waits, new, links["source"])
    return replace(graph, links=links.with_columns(source=moved))


def _renamed(old: Text, rows: Ids, names: Sequence[str]) -> Text:
    codes = old.codes.astype(np.int32)
    codes[rows] = np.arange(len(rows)) + len(old.values)
    return Text(codes, [*old.values, *names])


def _with_values(tasks: Table, name: str, rows: Ids, values: Any) -> Any:
    listed = TASKS.column(name).values
    column = tasks[name].copy()
    column[rows] = listed.index(values) if isinstance(values, str) else values
    return Text(column, listed) if listed else column


def _stacked(parts: Sequence[Table]) -> Table:
    columns: dict[str, Any] = {}
    for column in TASKS.columns:
        if column.kind == "text" and not column.values:
            columns[column.name] = Text.of(t for part in parts for t in part.text(column.name))
        else:
            joined = np.concatenate([part[column.name] for part in parts])
            columns[column.name] = Text(joined, column.values) if column.values else joined
    return Table(TASKS, columns)
