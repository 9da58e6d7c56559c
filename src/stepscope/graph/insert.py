"""The primitive *insert*: new tasks, links and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.arrays import Ids
from stepscope.graph.edges import LAUNCH
from stepscope.graph.graph import Graph
from stepscope.graph.graph_schema import EDGE_KINDS, LINKS, TASKS, THREADS
from stepscope.trace.concat import stacked
from stepscope.trace.row_order import inverse
from stepscope.trace.table import Table, Text


def insert(
    graph: Graph, anchors: ArrayLike, names: Sequence[str], in_front: bool = False, **columns: Any
) -> tuple[Graph, Ids]:
    """The graph with a new task after (or in front of) each anchor, on the same thread.

    Args:
        graph: any graph.
        anchors: tasks.id, shape (n,); several new tasks at one anchor keep their order.
        names: names of the new tasks.
        in_front: insert in front of the anchors. The first new task then takes over the anchor's
            dependencies, except its launch.
        columns: further columns of the new tasks, `duration_ns` above all. Other columns are copied
            from the anchor, without gap, event and mark.

    Returns:
        The graph, and the ids of the new tasks in it.

    Source: DAYDREAM section 4.4, figure 4.
    """
    place = np.asarray(anchors, np.int64)
    order = np.argsort(place, kind="stable")
    where = place[order] + (0 if in_front else 1)
    rows = np.insert(np.arange(len(graph)), where, place[order])
    new = np.empty(len(place), np.int64)
    new[order] = where + np.arange(len(place))
    tasks = graph.tasks.take(rows)
    fresh = {"gap_ns": 0, "earliest_ns": 0, "event": -1, "mark": 0, "bytes": -1, **columns}
    changed: dict[str, Any] = {"name": _renamed(tasks.text("name"), new, names)}
    for name, values in fresh.items():
        changed[name] = _with_values(tasks, name, new, values)
    number = numbers_after(len(rows), new)
    links = _renumbered(graph.links, number)
    if in_front:
        links = _first_waits(links, number[place], new)
    return replace(graph, tasks=tasks.with_columns(**changed), links=links), new


def numbers_after(count: int, new: ArrayLike) -> Ids:
    """The new ids of the old tasks in a graph of `count` tasks, of which `new` are new.

    Example:
        >>> numbers_after(5, [1, 4]).tolist()
        [0, 2, 3]
    """
    stays = np.ones(count, np.bool_)
    stays[np.asarray(new, np.int64)] = False
    return np.flatnonzero(stays)


def append(
    graph: Graph, thread: ArrayLike, names: Sequence[str], **columns: Any
) -> tuple[Graph, Ids]:
    """The graph with tasks at the end of threads, which may be empty; and the tasks' ids.

    Args:
        graph: any graph.
        thread: threads.id, a single one or one per task.
        names: names of the new tasks, in the order in which their threads run them.
        columns: further columns, as for `insert`.
    """
    count = len(names)
    new = Table(TASKS, {"name": Text.of(names), **_filled({"thread": thread, **columns}, count)})
    both = stacked([graph.tasks, new])
    order = np.argsort(both["thread"], kind="stable")
    number = inverse(order)
    links = _renumbered(graph.links, number)
    return replace(graph, tasks=both.take(order), links=links), number[len(graph) :]


def add_links(
    graph: Graph, source: ArrayLike, target: ArrayLike, kind: str, lag_ns: ArrayLike = 0
) -> Graph:
    """The graph with additional dependencies of one kind."""
    source, target = np.broadcast_arrays(np.atleast_1d(source), np.atleast_1d(target))
    old = graph.links
    columns: dict[str, Any] = {
        "source": np.concatenate([old["source"], source]),
        "target": np.concatenate([old["target"], target]),
        "lag_ns": np.concatenate([old["lag_ns"], np.broadcast_to(lag_ns, len(source))]),
    }
    codes = np.full(len(source), EDGE_KINDS.index(kind), np.int8)
    columns["kind"] = Text(np.concatenate([old["kind"], codes]), EDGE_KINDS)
    return replace(graph, links=Table(LINKS, columns))


def redirect(graph: Graph, old: ArrayLike, new: ArrayLike) -> Graph:
    """The graph in which tasks that waited for `old` wait for the corresponding `new` instead.

    Launches and the order within threads are unchanged.
    """
    links = graph.links
    instead = np.arange(len(graph))
    instead[np.asarray(old, np.int64)] = new
    moved = np.where(links["kind"] == LAUNCH, links["source"], instead[links["source"]])
    return replace(graph, links=links.with_columns(source=moved))


def add_thread(
    graph: Graph, name: str, kind: str, device: int, ordered: bool = True
) -> tuple[Graph, int]:
    """The graph with an additional thread, and the thread's id.

    Args:
        graph: any graph.
        name: name of the thread.
        kind: `cpu`, `device` or `communication`.
        device: index of its device, -1 for the CPU.
        ordered: whether its tasks run in their order, else as they become ready.
    """
    old = graph.threads
    columns: dict[str, Any] = {
        column: np.append(old[column], value)
        for column, value in (("track", -1), ("device", device), ("ordered", ordered), ("main", 0))
    }
    columns["rank"] = np.append(old["rank"], old["rank"][:1] if len(old) else 0)
    for column, text in (("name", name), ("kind", kind)):
        columns[column] = Text.of([*old.text(column), text])
    return replace(graph, threads=Table(THREADS, columns)), len(old)


def _first_waits(links: Table, old: Ids, new: Ids) -> Table:
    """Links to each old task, except launches, go to the first new task in front of it."""
    first = np.arange(max(old.max(initial=-1), links["target"].max(initial=-1)) + 1)
    np.minimum.at(first, old, new)
    moved = np.where(links["kind"] == LAUNCH, links["target"], first[links["target"]])
    return links.with_columns(target=moved)


def _renumbered(links: Table, number: Ids) -> Table:
    return links.with_columns(source=number[links["source"]], target=number[links["target"]])


def _renamed(old: Text, rows: Ids, names: Sequence[str]) -> Text:
    codes = old.codes.astype(np.int32)
    codes[rows] = np.arange(len(rows)) + len(old.values)
    return Text(codes, [*old.values, *names])


def _with_values(tasks: Table, name: str, rows: Ids, values: Any) -> Any:
    listed = TASKS.column(name).values
    column = tasks[name].copy()
    column[rows] = listed.index(values) if isinstance(values, str) else values
    return Text(column, listed) if listed else column


def _filled(columns: dict[str, Any], count: int) -> dict[str, Any]:
    """The columns with scalars repeated `count` times."""
    given = {"event": -1, "category": "other", **columns}
    return {
        name: Text.constant(value, count)
        if isinstance(value, str)
        else value
        if isinstance(value, Text)
        else np.broadcast_to(np.asarray(value), count)
        for name, value in given.items()
    }
