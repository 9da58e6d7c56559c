"""The primitive *remove*: remove tasks, and the calls that launched them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.arrays import Ids, Ids32, Mask
from stepscope.graph.edges import COMMUNICATION, LAUNCH, SYNC
from stepscope.graph.graph import Graph


def remove(graph: Graph, tasks: Mask, calls: bool = True) -> Graph:
    """The graph without some tasks and the gaps after them.

    Tasks that waited for a removed task wait for its predecessor on the thread. The next task of
    the stream takes over the dependencies of a removed device task. Those of a removed CPU wait are
    dropped.

    Args:
        graph: any graph.
        tasks: tasks to remove, bool, shape (tasks,); marks of steps always stay.
        calls: whether to remove calls all of whose device work is removed.

    Source: DAYDREAM section 4.4, figure 4.
    """
    gone = tasks & (graph.tasks["mark"] == 0)
    if calls:
        gone = gone | _only_launch(graph, gone & graph.on_device)
    before, after = _kept_neighbors(graph.tasks["thread"], gone)
    links = graph.links
    source, target, kind = links["source"], links["target"], links["kind"]
    lost = gone[target] & (kind == LAUNCH)
    lost |= gone[target] & ~graph.on_device[target] & np.isin(kind, (SYNC, COMMUNICATION))
    source, target = before[source], after[target]
    keep = ~lost & (source >= 0) & (target >= 0)
    place = np.cumsum(~gone) - 1
    kept = links.take(keep).with_columns(source=place[source[keep]], target=place[target[keep]])
    return replace(graph, tasks=graph.tasks.take(~gone), links=kept)


def _only_launch(graph: Graph, gone: Mask) -> Mask:
    """CPU tasks of calls all of whose device work is removed."""
    links = graph.links.take(graph.links["kind"] == LAUNCH)
    count = len(graph)
    launched = np.bincount(links["source"], minlength=count)
    lost = np.bincount(links["source"][gone[links["target"]]], minlength=count)
    calls = (launched > 0) & (launched == lost)
    events = np.unique(graph.tasks["event"][calls])
    # A waiting call is several tasks of one event.
    result: Mask = calls | (~graph.on_device & np.isin(graph.tasks["event"], events[events >= 0]))
    return result


def _kept_neighbors(thread: Ids32, gone: Mask) -> tuple[Ids, Ids]:
    """The nearest kept tasks of each task's thread, at or before it and at or after it; or -1."""
    number = np.arange(len(thread))
    before = np.maximum.accumulate(np.where(gone, -1, number))
    after = np.minimum.accumulate(np.where(gone, len(thread), number)[::-1])[::-1]
    safe = np.minimum(after, len(thread) - 1)
    return (
        np.where((before >= 0) & (thread[before] == thread), before, -1),
        np.where((after < len(thread)) & (thread[safe] == thread), after, -1),
    )
