"""A simulated step drawn with few rectangles: tasks too short to see are merged."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Ids, Times
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
    first = merge_short(simulation.graph.tasks["thread"][rows], start, end, most)
    return _drawn(simulation, rows, first)


def merge_short(label: Ids, start: Times, end: Times, most: int) -> Ids:
    """Merge intervals too short to see with their neighbors, until few enough are left.

    Args:
        label: only neighbors with the same label are merged, shape (n,), n at least 1.
        start, end: ns, shape (n,), in order of time for each row that is drawn.
        most: the maximum; each label that has an interval keeps at least one.

    Returns:
        The first interval of each merged one, shape (merged,).

    Example:
        >>> import numpy as np
        >>> start = np.array([0, 2, 4, 100])
        >>> merge_short(np.zeros(4, int), start, start + 1, 2).tolist()
        [0, 3]
    """
    width = max(int(end.max() - start.min()) // (most * _FINEST), 1)
    first = np.arange(len(start))
    while len(first) > most:
        joined = _firsts(label, start, end, width)
        if width > end.max():
            return joined
        first, width = joined, width * 2
    return first


_COLUMNS = ("thread", "start_us", "duration_us", "name", "stage", "kind", "tasks")


def _in_order(simulation: Simulation) -> Ids:
    visible = np.flatnonzero(simulation.graph.tasks["duration_ns"] > 0)
    thread = simulation.graph.tasks["thread"][visible]
    return visible[np.lexsort((simulation.start_ns[visible], thread))]


def _firsts(label: Ids, start: Times, end: Times, width: int) -> Ids:
    """The first interval of each merged one, at a resolution of `width` ns."""
    short = end - start < width
    together = (label[1:] == label[:-1]) & short[1:] & short[:-1]
    together &= start[1:] - end[:-1] <= width
    # A run of short intervals is cut now and then, so that its content stays visible.
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
