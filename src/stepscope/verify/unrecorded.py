"""Recorded steps corrected for the overhead of recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.arrays import Mask, Times
from stepscope.graph import Graph
from stepscope.verify.comparison import MeasuredRuns

_ROUNDS = 60  # of halving: to the last bit of a time


def unrecorded(graph: Graph, measured: MeasuredRuns) -> Graph:
    """The same steps without the overhead of recording, so that predictions match unrecorded runs.

    Recording costs the same for every event, so small operators suffer most. The unrecorded times
    of data loading, the optimizer and the rest of a step are known; within each, every task loses
    the same time, but no more than it has. A part that took longer unrecorded is stretched. With
    device work, the CPU overhead of recording seldom matters, and all times scale alike.

    Args:
        graph: of the recorded steps.
        measured: the same steps unrecorded.
    """
    factor = measured.step_ms * 1e6 / float(graph.window.measured_ns.mean())
    if graph.on_device.any():
        return _measured_as(_stretched(graph, factor), factor)
    columns = {name: graph.tasks[name].copy() for name in ("duration_ns", "gap_ns")}
    for part, step_ms in _parts(graph, measured):
        _set_total(columns, part, step_ms * 1e6 * len(graph.window.steps))
    return _measured_as(graph.with_tasks(**columns), factor)


def _parts(graph: Graph, measured: MeasuredRuns) -> Iterator[tuple[Mask, float]]:
    """Tasks of the training loop by part, with the time of the part per step, ms."""
    main = (graph.threads["main"] > 0)[graph.tasks["thread"]]
    stage = graph.tasks.text("stage")
    rest, rest_ms = main, measured.step_ms
    for name, part_ms in measured.parts_ms.items():
        part = main & stage.mask(name)
        if part.any():
            yield part, part_ms
            rest, rest_ms = rest & ~part, rest_ms - part_ms
    yield rest, rest_ms


def _set_total(columns: dict[str, Times], part: Mask, total_ns: float) -> None:
    """Change the times of some tasks so that they add up to a total."""
    length, gap = (columns[name][part] for name in ("duration_ns", "gap_ns"))
    excess = float((length + gap).sum()) - total_ns
    if excess > 0:
        cost = _shared(length + gap, excess)
        from_gap = np.minimum(gap, cost)
        length, gap = length - (cost - from_gap), gap - from_gap
    elif excess < 0:
        factor = total_ns / max(total_ns + excess, 1.0)
        length, gap = _times(length, factor), _times(gap, factor)
    columns["duration_ns"][part], columns["gap_ns"][part] = length, gap


def _shared(times: Times, total: float) -> Times:
    """The same time from each, or all of it if it has less, so that they add up to `total`."""
    low, high = 0.0, float(times.max(initial=0))
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(times, middle).sum() > total else (middle, high)
    return np.rint(np.minimum(times, high)).astype(np.int64)


def _stretched(graph: Graph, factor: float) -> Graph:
    links = graph.links.with_columns(lag_ns=_times(graph.links["lag_ns"], factor))
    names = ("duration_ns", "gap_ns", "earliest_ns")
    columns = {name: _times(graph.tasks[name], factor) for name in names}
    return replace(graph, links=links).with_tasks(**columns)


def _measured_as(graph: Graph, factor: float) -> Graph:
    """The graph with the measured times of its steps scaled."""
    window, begin = graph.window, graph.window.starts_ns[0]
    starts = begin + _times(window.starts_ns - begin, factor)
    first, end = (
        int(begin + _times(at - begin, factor)) for at in (window.begin_ns, window.end_ns)
    )
    return replace(graph, window=replace(window, starts_ns=starts, begin_ns=first, end_ns=end))


def _times(values: Any, factor: float) -> Times:
    return np.rint(np.asarray(values) * factor).astype(np.int64)
