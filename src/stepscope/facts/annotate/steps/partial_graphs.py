"""Replays of a CUDA graph that have less work in the file than others: lost, or left out.

Conditional nodes run their bodies in some replays only, and a recorder may lose a record. Time tells
them apart: a lost record leaves the device idle for as long as its work took, while work that was left
out makes room for what follows. Where the device has nothing to do after a replay, nothing shows which.
A recorder may lose the same nodes in each replay, too: then the device seems to pause in the graph.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.links.launches import device_work, launch_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

_MOSTLY = 0.5  # of the time that a missing kernel takes: idle for less, the device did not run it
_NOTABLE = 0.02  # of the work of a replay: less missing changes no figure
_PAUSE_NS = 1_000_000  # between two nodes a device takes microseconds
_NEVER = np.iinfo(np.int64).max


class PartialReplays(NamedTuple):
    """Replays with less work than others of their graph; positions among the launches given."""

    lost: Rows  # some of their work is not in the file
    unsure: Rows  # nothing shows whether it is lost, or did not run


def partial_replays(trace: Trace, launches: Rows, step: IntArray) -> PartialReplays:
    """Replays that lost a part of their work, or may have.

    The launches at one place of steps that launch as many graphs are of one graph; but what has work
    of its own is another graph, and so is a replay with as much work as one at another place, since
    steps may launch several graphs in any order.

    Args:
        launches: events.id of the launches of graphs, ascending.
        step: index of the step of each of them, or -1.
    """
    inside = np.flatnonzero(step >= 0)
    number = np.bincount(step[inside])
    usual = int(np.bincount(number[number > 0]).argmax()) if len(inside) else 0
    alike = inside[number[step[inside]] == usual].reshape(-1, max(usual, 1))
    replays = _replays(trace, launches)
    works = replays.works[alike]
    whole = works.max(axis=0, initial=0)
    full = [alike[works[:, place] == whole[place], place] for place in range(alike.shape[1])]
    fewer = (works < whole) & (works > 0)
    kernels = [replays.kernels(int(rows[0])) for rows in full] if fewer.any() else []
    lost, unsure = inside[replays.pauses[inside]].tolist(), []
    for place in np.flatnonzero(fewer.any(axis=0)).tolist():
        for replay in alike[fewer[:, place], place].tolist():
            own = replays.kernels(replay)
            if own <= kernels[place] and own not in kernels:
                idle, idle_after = replays.unusual_idle(replay, full[place], kernels[place] - own)
                lost += [replay] if idle else []
                unsure += [replay] if idle_after and not idle else []
    return PartialReplays(np.array(lost, np.int64), np.array(unsure, np.int64))


def work_of_calls(trace: Trace, rows: Rows) -> tuple[Ids, Ids]:
    """The device work of some calls, and of calls inside them: position of the call, and events.id.

    Both have the order of the calls; no call is inside another.
    """
    number = np.full(len(trace.events), -1, np.int32)
    number[rows] = np.arange(len(rows))
    launches = trace["launches"]
    call = inherit(trace.events["parent"], number)[launches["cpu_event"]].astype(np.int64)
    order = np.argsort(call, kind="stable")
    order = order[call[order] >= 0]
    return call[order], launches["device_event"][order].astype(np.int64)


class _Replays(NamedTuple):
    """Replays of graphs: their work, and times of the device in ns, shape (launches,)."""

    works: Ids  # pieces of work
    first: Ids  # of each, the position in `name`
    name: Ids  # of the pieces, in order of the replays
    length: Times  # of the pieces, ns
    busy: Times  # the lengths together
    idle: Times  # when the device was idle and, with all the work, should have been busy
    idle_after: Times  # when it was idle after the replay, and nothing waited for it
    pauses: Mask  # whether it paused within the replay

    def kernels(self, replay: int) -> Counter[int]:
        """How many pieces of each name a replay has."""
        return Counter(self.name[self.first[replay] :][: self.works[replay]].tolist())

    def unusual_idle(self, replay: int, full: Rows, missing: Counter[int]) -> tuple[bool, bool]:
        """Whether the device was idle for a `missing` piece in a replay, or may have been after it.

        Args:
            full: replays of the graph that lack nothing.
        """
        usual, most = np.median(self.idle[full]), self.idle[full].max()
        begin = self.first[full[0]]
        name, length = (column[begin:][: self.works[full[0]]] for column in (self.name, self.length))
        shortest = length[np.isin(name, list(missing))].min()
        least = max(_MOSTLY * shortest, _NOTABLE * self.busy[full[0]])
        extra = self.idle[replay] - usual
        return extra >= max(least, 2 * (most - usual)), extra + self.idle_after[replay] >= least


def _replays(trace: Trace, launches: Rows) -> _Replays:
    call, work = work_of_calls(trace, launches)
    start, end = trace.events.spans(work)
    works = np.bincount(call, minlength=len(launches))
    busy = np.bincount(call, end - start, len(launches)).astype(np.int64)
    idle = np.zeros_like(busy), np.zeros_like(busy)
    columns = works, np.cumsum(works) - works, trace.events["name"][work], end - start, busy
    replays = _Replays(*columns, *idle, np.zeros(len(launches), np.bool_))
    device = trace["tracks"]["device"][trace.events["track"][work]]
    for each in distinct(device).tolist():
        _fill_idle(trace, launches, replays, call[device == each], work[device == each], each)
    return replays


def _fill_idle(trace: Trace, launches: Rows, replays: _Replays, call: Ids, work: Ids, device: int) -> None:
    """Fill the idle times of the replays of one device.

    A replay may begin when it is launched and the work before it has ended. It has ended when work
    that was launched meanwhile begins, or a wait of the CPU ends.
    """
    events = trace.events
    first, last = (np.zeros(len(launches), np.int64) for _ in range(2))
    starts, ends = events.spans(work)
    first[call] = _NEVER
    np.minimum.at(first, call, starts)
    np.maximum.at(last, call, ends)
    here = distinct(call).astype(np.int64)
    first, last = first[here], last[here]
    called, returned = events.spans(launches[here])
    rows = np.flatnonzero(device_work(trace) & (trace["tracks"]["device"] == device)[events["track"]])
    busy = Intervals(*events.spans(rows))
    pauses = np.flatnonzero(busy.starts[1:] - busy.ends[:-1] >= _PAUSE_NS)
    since = np.maximum(first, returned)  # until then the call may launch the nodes one by one
    following = np.append(busy.starts[1:][pauses], _NEVER)[np.searchsorted(busy.ends[:-1][pauses], since)]
    replays.pauses[here] = following <= last
    earlier = np.append(0, busy.ends)[np.searchsorted(busy.starts, first)]
    asked, until = _next_need(trace, rows, last, called)
    asked = np.clip(asked, last, until)
    begin = np.clip(earlier, called, np.maximum(called, first))
    replays.idle[here] = _idle(busy, begin, last) + _idle(busy, asked, until)
    replays.idle_after[here] = _idle(busy, last, asked)


def _idle(busy: Intervals, start: Times, end: Times) -> Times:
    return np.maximum(end - start - busy.within(start, end), 0)


def _next_need(trace: Trace, work: Ids, last: Times, called: Times) -> tuple[Times, Times]:
    """From when and until when something waits for what ends at `last`: further work, or the CPU."""
    events = trace.events
    begin, caller = events["start_ns"][work], launch_of(trace)[work]
    waits = events.text("category").mask("runtime")
    waits &= events.text("name").where(lambda name: "Synchronize" in name)
    wait_begin, wait_end = events.spans(np.flatnonzero(waits))
    since = np.append(np.where(caller >= 0, events["start_ns"][caller], begin), wait_begin)
    until = np.append(begin, wait_end)
    order = np.argsort(until, kind="stable")
    place = np.searchsorted(until[order], last)
    end = int(events.spans()[1].max())
    since, until = (np.append(times[order], end)[place] for times in (since, until))
    return np.where(since < called, until, since), until  # what began before the launch is for other work
