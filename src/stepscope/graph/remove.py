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
    return without(graph, removed_by(graph, tasks, calls))


def removed_by(graph: Graph, tasks: Mask, calls: bool = True) -> Mask:
    """All tasks that `remove` with these arguments removes, bool, shape (tasks,)."""
    gone: Mask = tasks & (graph.tasks["mark"] == 0)
    return gone | _only_launch(graph, gone & graph.on_device) if calls else gone


def without(graph: Graph, gone: Mask) -> Graph:
    """The graph without exactly the tasks that `removed_by` found."""
    links = graph.links
    source, target, kind = links["source"], links["target"], links["kind"]
    lost = gone[target] & (kind == LAUNCH)
    lost |= gone[target] & ~graph.on_device[target] & np.isin(kind, (SYNC, COMMUNICATION))
    source, target = _instead(graph.tasks["thread"], gone, source, target)
    keep = ~lost & (source >= 0) & (target >= 0)
    kept = links.take(keep).with_columns(source=source[keep], target=target[keep])
    return replace(graph, tasks=graph.tasks.take(~gone), links=kept)


def _only_launch(graph: Graph, gone: Mask) -> Mask:
    """CPU tasks of calls all of whose device work is removed."""
    links = graph.links.take(graph.links["kind"] == LAUNCH)
    count = len(graph)
    launched = np.bincount(links["source"], minlength=count)
    lost = np.bincount(links["source"][gone[links["target"]]], minlength=count)
    calls = (launched > 0) & (launched == lost)
    event = graph.tasks["event"]
    of_call = np.zeros(int(event.max(initial=-1)) + 2, np.bool_)  # the last is for no event
    of_call[event[calls]] = True
    of_call[-1] = False
    # A waiting call is several tasks of one event.
    result: Mask = calls | (~graph.on_device & of_call[event])
    return result


def _instead(thread: Ids32, gone: Mask, sources: Ids32, targets: Ids32) -> tuple[Ids, Ids]:
    """The nearest tasks of a thread that stay: at or before sources, at or after targets.

    They are numbered as after the removal; -1 where there is none.
    """
    stays = np.flatnonzero(~gone)
    last = np.cumsum(~gone) - 1  # of those that stay, at or before each task
    of_kept = np.append(thread[stays], -1)
    before, after = last[sources], last[targets] + gone[targets]
    return (
        np.where((before >= 0) & (of_kept[before] == thread[sources]), before, -1),
        np.where(of_kept[after] == thread[targets], after, -1),
    )
