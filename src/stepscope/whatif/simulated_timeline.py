"""A simulated step drawn with few rectangles: tasks too short to see are merged."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Ids
from stepscope.graph import Simulation

_FINEST = 64  # the first resolution is so many times finer than one rectangle per slot


def rectangles(simulation: Simulation, most: int) -> dict[str, list[Any]]:
    """At most `most` rectangles for the tasks of a simulation, by thread and time.

    Tasks shorter than a resolution are merged with their neighbors on the thread, across gaps no
    longer than it; the finest resolution with few enough rectangles counts. Tasks without length
    are left out.

    Args:
        simulation: of any graph.
        most: the maximum; a thread with work has at least one.

    Returns:
        Columns of equal length: `thread` (threads.id), `start_us`, `duration_us`, `name`, `stage`
        and `kind` of its longest task, and its number of `tasks`.
    """
    rows = _in_order(simulation)
    if not len(rows):
        return {name: [] for name in _COLUMNS}
    start, end = simulation.start_ns[rows], simulation.end_ns[rows]
    thread = simulation.graph.tasks["thread"][rows]
    width = max(int(end.max() - start.min()) // (most * _FINEST), 1)
    first = np.arange(len(rows))
    while len(first) > most:
        joined = _firsts(thread, start, end, width)
        if width > end.max():
            first = joined
            break
        first, width = joined, width * 2
    return _drawn(simulation, rows, first)


_COLUMNS = ("thread", "start_us", "duration_us", "name", "stage", "kind", "tasks")


def _in_order(simulation: Simulation) -> Ids:
    visible = np.flatnonzero(simulation.graph.tasks["duration_ns"] > 0)
    thread = simulation.graph.tasks["thread"][visible]
    return visible[np.lexsort((simulation.start_ns[visible], thread))]


def _firsts(thread: Ids, start: Ids, end: Ids, width: int) -> Ids:
    """The first task of each rectangle, at a resolution of `width` ns."""
    short = end - start < width
    together = (thread[1:] == thread[:-1]) & short[1:] & short[:-1]
    together &= start[1:] - end[:-1] <= width
    # A run of short tasks is cut now and then, so that its content stays visible.
    together &= start[1:] // (16 * width) == start[:-1] // (16 * width)
    return np.flatnonzero(np.append(True, ~together))


def _drawn(simulation: Simulation, rows: Ids, first: Ids) -> dict[str, list[Any]]:
    tasks = simulation.graph.tasks
    start, end = simulation.start_ns[rows], simulation.end_ns[rows]
    finish = np.maximum.reduceat(end, first)
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(rows))))
    order = np.lexsort((start - end, group))
    longest = rows[order[np.searchsorted(group, np.arange(len(first)))]]
    return {
        "thread": tasks["thread"][rows[first]].tolist(),
        "start_us": (start[first] / 1000).tolist(),
        "duration_us": ((finish - start[first]) / 1000).tolist(),
        "name": list(tasks.text("name").take(longest)),
        "stage": list(tasks.text("stage").take(longest)),
        "kind": list(tasks.text("kind").take(longest)),
        "tasks": np.diff(np.append(first, len(rows))).tolist(),
    }
