"""Several ranks in one graph: a collective starts on all ranks when the last one arrives.

Sends and receives are dependencies between two ranks likewise, so that pipelined jobs replay and
change correctly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.device.collectives import collective_key
from stepscope.facts.annotate.steps.step_table import ranks_with_steps
from stepscope.graph.build_graph import build_graph
from stepscope.graph.graph import Graph, Window
from stepscope.graph.primitives import add_links, add_thread, append, insert, numbers_after
from stepscope.trace.concat import stacked
from stepscope.trace.trace import Trace

_PEER = {"send": "Dst Rank", "recv": "Src Rank"}


class _Meeting(NamedTuple):
    """Tasks of several ranks that depend on each other."""

    members: Ids  # tasks.id, shape (n,)
    awaited: Mask  # members that others wait for, bool, shape (n,)
    waiting: Mask  # members that wait, bool, shape (n,)


def build_ranks(
    trace: Trace, ranks: Sequence[int] | None = None, steps: tuple[int, int] | None = None
) -> Graph:
    """The dependency graph of the same steps of several ranks, connected by their communication.

    The n-th collective of a kind on a process group is the same on every rank. Each rank arrives
    when its work allows; the collective begins on all ranks when the last one has arrived, and
    takes its measured time from there. The n-th send from one rank to another belongs to the n-th
    receive there; a send that ended before its receive began does not wait for it.

    By default it has all ranks with steps, and the longest run of the first rank. Raises TraceError if
    a rank does not have these steps.

    Source: Kineto's metadata of NCCL kernels (`Src Rank` and `Dst Rank` of `recv` and `send`).
    """
    ranks = list(ranks_with_steps(trace) if ranks is None else ranks)
    first = build_graph(trace, ranks[0], steps)
    span = steps or (first.window.steps[0], first.window.steps[-1])
    graphs = [first, *(build_graph(trace, rank, span) for rank in ranks[1:])]
    if len({graph.window.steps for graph in graphs}) > 1:
        raise TraceError(f"{trace.metadata.source}: the ranks do not have the same steps")
    return _with_meetings(_combined(graphs)) if len(graphs) > 1 else first


def _combined(graphs: Sequence[Graph]) -> Graph:
    """The graphs in one; each keeps its begin, and collectives keep their measured times."""
    # Where clocks are apart, begins are not comparable.
    begins = [0 if _clocks_apart(graph) else int(graph.window.starts_ns[0]) for graph in graphs]
    threads = accumulate((len(graph.threads) for graph in graphs[:-1]), initial=0)
    tasks = accumulate((len(graph) for graph in graphs[:-1]), initial=0)
    offsets = [{"threads": thread, "tasks": task} for thread, task in zip(threads, tasks, strict=True)]
    started = [
        graph.tasks.with_columns(earliest_ns=graph.tasks["earliest_ns"] + (begin - min(begins)))
        for graph, begin in zip(graphs, begins, strict=True)
    ]
    return Graph(
        stacked(started, offsets),
        stacked([graph.links for graph in graphs], offsets),
        stacked([graph.threads for graph in graphs]),
        graphs[0].trace,
        _mean_window([graph.window for graph in graphs]),
    )


def _mean_window(windows: Sequence[Window]) -> Window:
    """Each time is the mean of those of the ranks, since the CPU begins the first step of each."""
    starts, begins, ends = (
        np.rint(np.mean([getattr(window, name) - window.starts_ns[0] for window in windows], axis=0))
        for name in ("starts_ns", "begin_ns", "ends_ns")
    )
    return Window(-1, windows[0].steps, starts.astype(np.int64), int(begins), ends.astype(np.int64))


def _with_meetings(graph: Graph) -> Graph:
    """The graph with an arrival before each communication, which waits for the other arrivals."""
    meetings = [*_meetings(graph)]
    if not meetings:
        return graph
    start, length = _measured_starts(graph), graph.tasks["duration_ns"].copy()
    for meeting in meetings:
        _keep_transfer(graph, meeting, start, length)
    graph = graph.with_tasks(duration_ns=length)
    members, awaited, waiting = (np.concatenate(column) for column in zip(*meetings, strict=True))
    number = np.repeat(np.arange(len(meetings)), [len(meeting.members) for meeting in meetings])
    plain: dict[str, Any] = {"duration_ns": 0, "category": "other", "kind": "other"}
    graph, arrivals = insert(graph, members, ["arrival"] * len(members), in_front=True, **plain)
    members = numbers_after(len(graph), arrivals)[members]
    moved = np.arange(len(graph))
    moved[members] = arrivals  # a rank arrives after the launch
    graph = replace(graph, links=graph.links.with_columns(target=moved[graph.links["target"]]))
    graph, place = add_thread(graph, "meetings", "communication", -1, ordered=False)
    graph, hubs = append(graph, place, ["all arrived"] * len(meetings))
    graph = add_links(graph, arrivals[awaited], hubs[number[awaited]], "communication")
    return add_links(graph, hubs[number[waiting]], members[waiting], "communication")


def _keep_transfer(graph: Graph, meeting: _Meeting, start: Times, length: Times) -> None:
    """Reduce the length of each waiting member to its time after the last arrival.

    Without a common clock, that time is the shortest length of the members.
    """
    waiting = meeting.members[meeting.waiting]
    if _clocks_apart(graph):
        length[waiting] = length[meeting.members].min()
        return
    begun = np.maximum(start[waiting], start[meeting.members[meeting.awaited]].max())
    length[waiting] = np.maximum(start[waiting] + length[waiting] - begun, 0)


def _clocks_apart(graph: Graph) -> bool:
    return bool(graph.trace["warnings"].text("code").mask("clocks_apart").any())


def _measured_starts(graph: Graph) -> Times:
    return np.append(graph.trace.events["start_ns"], 0)[graph.tasks["event"]]


def _meetings(graph: Graph) -> Iterator[_Meeting]:
    """The collectives of several ranks, then sends with their receives.

    Kinds that occur unequally often on the ranks are left out.
    """
    collectives, transfers = _by_key(graph)
    for of_ranks in collectives.values():
        lists = list(of_ranks.values())
        if len(lists) > 1 and len({len(tasks) for tasks in lists}) == 1:
            all_members = np.ones(len(lists), np.bool_)
            for same in zip(*lists, strict=True):
                yield _Meeting(np.array(same, np.int64), all_members, all_members)
    start, length, apart = _measured_starts(graph), graph.tasks["duration_ns"], _clocks_apart(graph)
    for sides in transfers.values():
        sends, receives = sides.get("send", []), sides.get("recv", [])
        for send, receive in zip(sends, receives, strict=True) if len(sends) == len(receives) else ():
            blocks = apart or start[send] + length[send] > start[receive]
            members = np.array([send, receive], np.int64)
            yield _Meeting(members, np.array([True, blocks]), np.array([blocks, True]))


def sending_pairs(graph: Graph) -> set[tuple[int, int]]:
    """The ranks that send to each other, as recorded: from, to."""
    return {(sender, receiver) for *_, sender, receiver in _by_key(graph)[1]}


Groups = dict[tuple[Any, ...], dict[Any, list[int]]]


def _by_key(graph: Graph) -> tuple[Groups, Groups]:
    """Communication in order of time: collectives by kind and process group, as far as recorded, then
    by rank; sends and receives by process group and both ranks, then by kind."""
    sends = graph.threads.text("kind").mask("communication")[graph.tasks["thread"]] | graph.on_device
    communicates = sends & graph.tasks.text("category").mask("communication")
    rows = np.flatnonzero(communicates & (graph.tasks["event"] >= 0))
    rows = rows[np.argsort(_measured_starts(graph)[rows], kind="stable")]
    ranks = graph.threads["rank"][graph.tasks["thread"][rows]]
    names = graph.tasks.text("name")
    collectives: Groups = {}
    pairs: Groups = {}
    for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True):
        arguments = graph.trace.event_arguments(int(graph.tasks["event"][row]))
        kind, *group = collective_key(str(names[row]), arguments)
        kind = kind.rpartition(":")[2]  # of `gloo:send`
        if kind not in _PEER:
            collectives.setdefault((kind, *group), {}).setdefault(rank, []).append(row)
        elif isinstance(peer := arguments.get(_PEER[kind]), int):
            pair = (rank, peer) if kind == "send" else (peer, rank)
            pairs.setdefault((*group, *pair), {}).setdefault(kind, []).append(row)
    return collectives, pairs
