"""The CPU side of a graph: threads cut into tasks, their waits, and their handovers.

A task is an interval in which the same event is innermost. An interval without an event is the gap
of the previous task, so the tasks of a thread and their gaps tile its time. Python frames belong to
the gaps: they show where time is spent, not what is done. Threads are also cut where a step begins,
and where a thread begins or ends a wait.

`loss.backward()` hands the work to autograd's threads and sleeps until they are done. A trace does
not record this wait, but the training loop's thread begins no event meanwhile. (It may run parts of
backward itself, for parameters on the CPU; each such part ends its wait.) Threads that communicate
(Gloo's) take a collective and work next to the training loop, until it waits for the result: it then
is between two events, or in an operator that only waits. Of other threads, an execution trace says what
they need of one another."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Codes8, Ids, Mask, Times
from stepscope.facts.annotate.device.collectives import is_communication_wait
from stepscope.facts.annotate.jax.calls import is_compiled_call
from stepscope.facts.annotate.links.launches import marked_on_devices, on_host
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.step_table import step_marks
from stepscope.graph.data_flow import data_pairs, last_needs
from stepscope.graph.device_tasks import WindowWork, WorkWaits, find_waits
from stepscope.graph.graph import Window
from stepscope.trace.columns import ParallelArrays, gathered
from stepscope.trace.nesting import innermost, last_started
from stepscope.trace.row_order import begins_run, ends_run, rows_by_key
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace

# Order of boundaries at the same time: ends, begins of steps, handovers between threads, starts,
# and ends of waits of a call that begins at this time.
_END, MARK, HANDOVER, _START, RETURN = range(5)
_CUT = -2  # owner of a cut until it is known; -1 is none


@dataclass(frozen=True)
class Cuts:
    """Times at which a thread is cut: `track`, `time_ns` and the kind of cut (`order`)."""

    track: Ids
    time_ns: Times
    order: Codes8

    @classmethod
    def of(cls, *parts: tuple[Ids, Times, int]) -> "Cuts":
        tracks, times = ([part[n] for part in parts] for n in (0, 1))
        orders = [np.full(len(part[0]), part[2], np.int8) for part in parts]
        return cls(*(np.concatenate(column) for column in (tracks, times, orders)))


@dataclass(frozen=True)
class TaskPieces:
    """Tasks of CPU threads, sorted by thread and time."""

    track: Ids  # the thread of each task
    owner: Ids  # the innermost event, -1 for none
    start_ns: Times  # measured start
    duration_ns: Times  # measured length
    gap_ns: Times  # time until the next task of the thread
    # for each event of the trace, its first task, or -1; the next task if the event has no self time
    of_event: Ids
    of_cut: Ids  # for each cut, the task that it starts


def host_events(trace: Trace, window: Window) -> Ids:
    """Events on the rank's CPU threads in the window that become tasks."""
    events = trace.events
    ranks = trace["tracks"]["rank"][events["track"]]
    start, end = events["start_ns"], events["start_ns"] + events["duration_ns"]
    wanted = events.text("category").mask("cpu_op", "runtime", "annotation", "communication")
    wanted[trace["launches"]["cpu_event"]] = True
    wanted &= ~step_marks(trace)
    inside = (start < window.starts_ns[-1]) & (end >= window.starts_ns[0])
    return np.flatnonzero(wanted & on_host(trace) & (ranks == window.rank) & inside)


def cut_threads(trace: Trace, rows: Ids, cuts: Cuts, window: Window) -> TaskPieces:
    """The tasks of the events `rows` on CPU threads, divided at `cuts`."""
    track, time, owner, origin = _boundaries(trace, rows, cuts, window)
    owner = _fill_cuts(owner, track)
    following = np.append(time[1:], window.starts_ns[-1])
    length = np.where(ends_run(track), 0, following - time)
    keep = ((length > 0) & (owner >= 0)) | _must_stay(trace, origin, rows)
    where: Ids = np.cumsum(keep) - keep
    of_event, of_cut = np.full(len(trace.events), -1), np.full(len(cuts.track), -1)
    begins = origin < len(rows)
    of_event[rows[origin[begins]]] = where[begins]
    cut = origin >= 2 * len(rows)
    of_cut[origin[cut] - 2 * len(rows)] = where[cut]
    track, time, length, owner = track[keep], time[keep], length[keep], owner[keep]
    length[owner < 0] = 0
    gap = np.append(time[1:], 0) - time - length
    gap[ends_run(track)] = 0
    return TaskPieces(track, owner, time, length, np.maximum(gap, 0), of_event, of_cut)


def _boundaries(trace: Trace, rows: Ids, cuts: Cuts, window: Window) -> tuple[Ids, Times, Ids, Ids]:
    """All starts, ends and cuts in order: track, time, innermost event afterwards, origin."""
    events = trace.events
    begin, finish = window.starts_ns[0], window.starts_ns[-1]
    start, end = (np.clip(times, begin, finish) for times in events.spans(rows))
    # Of what ends at the same time, the later row is the inner one, and ends first.
    outer, end, begun = around(trace, rows)[::-1], end[::-1], start[::-1]
    tracks, cut = events["track"][rows], np.full(len(cuts.track), _CUT)
    track = np.concatenate([tracks, tracks[::-1], cuts.track.astype(np.int32)])
    time = np.concatenate([start, end, cuts.time_ns])
    owner = np.concatenate([rows, outer, cut]).astype(np.int32)
    # An event without length ends at the time of its start, but after it.
    ends = np.where(begun == end, np.int8(RETURN + 1), np.int8(_END))
    order = np.concatenate([np.full(len(rows), _START, np.int8), ends, cuts.order])
    sorting = np.lexsort((order, time, track))
    return gathered(track, sorting), gathered(time, sorting), gathered(owner, sorting), sorting


def around(trace: Trace, rows: Ids) -> Ids:
    """The innermost of `rows` around each of them, or -1."""
    parent = trace.events["parent"]
    return np.append(innermost(parent, mask_of(rows, len(parent))), -1)[parent[rows]].astype(np.int64)


def _fill_cuts(owner: Ids, track: Ids) -> Ids:
    """A cut does not change the innermost event."""
    known = np.maximum.accumulate(np.where(owner == _CUT, -1, np.arange(len(owner))))
    return np.where((known >= 0) & (track[known] == track), owner[known], -1)


def _must_stay(trace: Trace, origin: Ids, rows: Ids) -> Mask:
    """Cuts and starts of runtime calls: other tasks depend on them, even with zero length."""
    called = trace.events.text("category").mask("runtime")
    called[trace["launches"]["cpu_event"]] = True
    stays = np.concatenate([called[rows], np.zeros(len(rows), np.bool_)])
    cut = origin >= len(stays)
    return cut | stays[np.where(cut, 0, origin)] if len(stays) else cut


_TAKES = "torch.distributed.ddp.reducer::copy_bucket_to_grad"  # what DistributedDataParallel waited for
_RACE_NS = 50_000  # chosen: by so much an awaited part may seem to end too late


@dataclass(frozen=True, eq=False)
class Bursts(ParallelArrays):
    """Intervals of work that another thread does for the main thread."""

    track: Ids  # the thread that works
    start_ns: Times  # when the work begins
    wait_ns: Times  # when the main thread begins to wait for its end
    end_ns: Times  # when the main thread continues; -1 if it did not wait


def find_bursts(trace: Trace, rows: Ids, main: int) -> Bursts:
    """The work that autograd's and communication's threads do for the thread `main`."""
    tracks = trace.events["track"]
    of_main = rows[tracks[rows] == main]
    communicates = trace.events.text("category").mask("communication")
    backward = trace.events["stage"] == STAGES.index("backward")
    bursts, starts = [], np.sort(trace.events["start_ns"][of_main])
    for own in rows_by_key(tracks, rows[tracks[rows] != main]).values():
        if communicates[own].any():
            bursts.append(_collectives(trace, own[communicates[own]], of_main))
        elif backward[own].any():  # another thread serves something else
            bursts.append(_parts_of_backward(trace, own, starts))
    return Bursts.joined(bursts)


def _parts_of_backward(trace: Trace, rows: Ids, main_starts: Times) -> Bursts:
    """The thread's top-level events, grouped by the last main-thread event before them.

    The main thread waited for those that ended before it continued.
    """
    top = rows[around(trace, rows) < 0]
    start, end = trace.events.spans(top)
    group = np.searchsorted(main_starts, start, side="right")
    begins = np.flatnonzero(begins_run(group))
    following = np.append(main_starts, np.iinfo(np.int64).max)[group]
    awaited = np.where(end <= following + _RACE_NS, np.minimum(end, following), -1)
    joined = np.maximum.reduceat(awaited, begins)
    return Bursts(trace.events["track"][top[begins]].astype(np.int64), start[begins], start[begins], joined)


def _collectives(trace: Trace, rows: Ids, of_main: Ids) -> Bursts:
    """One burst per collective; the main thread waits for it if it computes nothing at its end."""
    events = trace.events
    start, end = events["start_ns"][rows], events["start_ns"][rows] + events["duration_ns"][rows]
    end = _taken_ns(trace, of_main, start, end)
    since, innermost = _state_at(trace, of_main, end)
    computes = events.text("category").mask("cpu_op", "runtime")
    computes &= ~events.text("name").where(is_communication_wait)
    idle = ~np.append(computes, False)[innermost]
    track = events["track"][rows].astype(np.int64)
    return Bursts(track, start, np.maximum(start, since), np.where(idle, end, -1))


def _taken_ns(trace: Trace, of_main: Ids, start: Times, end: Times) -> Times:
    """The ends of collectives, or when the main thread went on, if the system then held up their thread."""
    copies = of_main[trace.events.text("name").mask(_TAKES)[of_main]]
    if not len(copies):
        return end
    copied_ns, step = (trace.events[name][copies] for name in ("start_ns", "step"))
    begins, result = np.sort(trace.events["start_ns"][of_main]), end.copy()
    paused_ns = begins - _state_at(trace, of_main, begins)[0]
    last = np.searchsorted(copied_ns, end) - 1
    for row in np.flatnonzero((last >= 0) & (copied_ns[last] > start)).tolist():
        until = copied_ns[last[row]], copied_ns[np.flatnonzero(step == step[last[row]])[-1]]
        first, after, over = np.searchsorted(begins, [start[row], *until])
        if paused_ns[after + 1 : over + 1].max(initial=0) < _RACE_NS:  # else they are of an earlier bucket
            result[row] = begins[first + np.argmax(paused_ns[first : after + 1])]
    return result


def _state_at(trace: Trace, rows: Ids, times: Times) -> tuple[Times, Ids]:
    """Since when a thread, with its events `rows`, has been in the innermost at each time; -1 for none."""
    time = np.concatenate(trace.events.spans(rows))
    owner = np.concatenate([rows, around(trace, rows)])
    # Of what begins and ends at the same time, the later row is the inner one: it begins last.
    place = np.arange(len(rows))
    order = np.lexsort((np.concatenate([place, -place]), time))
    last = np.searchsorted(time[order], times, side="left") - 1
    known = last >= 0
    found = np.append(order, len(time))[np.where(known, last, -1)]
    return np.where(known, np.append(time, 0)[found], times), np.append(owner, -1)[found]


_LITTLE = 0.5  # of the time that a thread was idle: then it waited for what ended so shortly before


@dataclass(frozen=True)
class Needs:
    """Operators that need what an operator of another thread wrote."""

    by: Ids  # the thread that writes
    until_ns: Times  # when it has written
    target: Ids  # events.id of the operator that needs it
    track: Ids  # the thread of that
    since_ns: Times  # when this began to wait; -1 if it did not


def find_needs(trace: Trace, rows: Ids, main: int, bursts: Bursts, begin_ns: int) -> Needs:
    """What threads need of one another, by data; of those that work for the main thread, bursts tell.

    A thread waited for what it needs if it was idle until then, and soon began what needs it.
    """
    source, target = data_pairs(trace)
    if not len(source):
        return Needs(*[source] * 5)
    of, (start, end) = trace.events["track"].astype(np.int64), trace.events.spans()
    computes = trace.events.text("category").mask("cpu_op", "runtime", "communication")
    told, rows = np.isin(of, bursts.track), rows[computes[rows]]
    known = np.isin(trace.events["id"], rows[end[rows] > start[rows]])
    wanted = known[source] & known[target] & (of[source] != of[target])
    wanted &= ~((of[source] == main) & told[target] | (of[target] == main) & told[source])
    source, target = last_needs(of, (source[wanted], target[wanted]), start, end)
    until, track, since = end[source], of[target], np.full(len(source), -1, np.int64)
    of_thread = rows_by_key(of, rows)
    for thread, here in rows_by_key(track).items():
        own = of_thread[thread]
        idle, innermost = _state_at(trace, own, until[here])
        first = own[np.searchsorted(start[own], until[here])]
        idle = np.where(first == own[0], begin_ns, idle)
        soon = start[first] - until[here] <= _LITTLE * (start[first] - idle)
        since[here] = np.where((innermost < 0) & (start[target[here]] < end[first]) & soon, idle, -1)
    return Needs(of[source], until, target, track, since)


@dataclass(frozen=True)
class CpuSide:
    """Tasks of the CPU threads, and indices of tasks with a special role."""

    # tracks.id of the training loop's thread; of the busiest stream, if steps are marked on devices or the
    # file has no CPU events: steps then follow one another at the pace of its work
    main: int
    on_stream: bool  # whether that is a stream
    rows: Ids  # the CPU events of the window
    pieces: TaskPieces  # the tasks
    waits: WorkWaits  # pairs of a waiting call and the device work that it waits for
    calls: Ids  # the distinct waiting calls
    returns: Ids  # for each of `calls`, the task at which the wait ends
    begins: Ids  # and the one at which it begins: that of the call, or its last before that
    bursts: Bursts  # work that other threads do for the main thread
    joined: Ids  # indices of the bursts that the main thread waits for
    marks: Ids  # tasks at which steps begin, and the last ends
    forks: Ids  # for each burst, the main thread's task that starts it
    begun: Ids  # for each burst, its first task
    sleeps: Ids  # for each joined burst, the main thread's task that begins the wait for it
    joins: Ids  # for each joined burst, the main thread's task that ends the wait
    needs: Needs  # of data that other threads write
    rests: Ids  # for each of `needs` that was waited for, the task that begins the wait
    resumes: Ids  # for each of them, the task that ends the wait

    def working_times(self) -> tuple[Times, Times]:
        """Durations and gaps without the time in which a thread waits for another one."""
        pieces = self.pieces
        change = np.zeros(len(pieces.track) + 1, np.int64)
        np.add.at(change, self.begins, 1)
        np.add.at(change, np.concatenate([self.sleeps, self.rests]), 1)
        np.add.at(change, np.concatenate([self.returns, self.joins, self.resumes]), -1)
        waiting = np.cumsum(change)[:-1] > 0
        gap = np.where(waiting, 0, pieces.gap_ns)
        # Between two bursts, their thread sleeps.
        gap[self.begun[~begins_run(pieces.track)[self.begun]] - 1] = 0
        return np.where(waiting, 0, pieces.duration_ns), gap

    def last_tasks(self, track: Ids, end: Times) -> Ids:
        """The last task that begins on each thread before a time, such as the end of a wait for it."""
        pieces = self.pieces
        last = last_started(track, end - 1, pieces.track, pieces.start_ns)
        return np.where(last < 0, np.searchsorted(pieces.track, track), last)

    def independent(self) -> Mask:
        """First tasks of threads that do not work for the training loop."""
        serves = np.isin(self.pieces.track, [self.main, *self.bursts.track])
        return begins_run(self.pieces.track) & ~serves & ~np.isin(np.arange(len(serves)), self.rests)

    def paced_by_earlier_work(self) -> Mask:
        """Tasks that follow a wait for work from before the recording."""
        result = np.zeros(len(self.pieces.track), np.bool_)
        result[self.returns[np.searchsorted(self.calls, self.waits.call[self.waits.work < 0])]] = True
        return result


def cut_cpu(trace: Trace, window: Window, work: WindowWork) -> CpuSide:
    """The CPU's tasks in a window, cut where steps begin and where threads wait or hand over."""
    rows = host_events(trace, window)
    on_stream = (not len(rows) or marked_on_devices(trace)) and len(work.event) > 0
    busiest = int(np.bincount(work.track, work.end_ns - work.start_ns).argmax()) if on_stream else -1
    main = busiest if on_stream else main_track(trace, window.rank)
    waits = find_waits(trace, rows, work)
    calls, until = _wait_ends(trace, waits)
    bursts = find_bursts(trace, rows, main)
    joined = np.flatnonzero(bursts.end_ns >= 0)
    needs = find_needs(trace, rows, main, bursts, int(window.starts_ns[0]))
    waited = needs.since_ns >= 0
    parts = (
        (_all(main, window.starts_ns), window.starts_ns, MARK),
        (_all(main, bursts.start_ns), bursts.start_ns, HANDOVER),
        (bursts.track, bursts.start_ns, HANDOVER),
        (_all(main, joined), bursts.wait_ns[joined], HANDOVER),
        (_all(main, joined), bursts.end_ns[joined], HANDOVER),
        (trace.events["track"][calls].astype(np.int64), until, RETURN),
        (needs.track[waited], needs.since_ns[waited], HANDOVER),
        (needs.track[waited], needs.until_ns[waited], HANDOVER),
    )
    pieces = cut_threads(trace, rows, Cuts.of(*parts), window)
    of_part = np.split(pieces.of_cut, np.cumsum([len(part[0]) for part in parts])[:-1])
    marks, forks, begun, sleeps, joins, returns, rests, resumes = of_part
    compiled, first = trace.events.text("name").where(is_compiled_call)[calls], pieces.of_event[calls]
    begins = np.where(compiled, np.maximum(returns - 1, first), first)
    others = bursts, joined, marks, forks, begun, sleeps, joins, needs, rests, resumes
    return CpuSide(main, on_stream, rows, pieces, waits, calls, returns, begins, *others)


def _all(value: int, like: Ids) -> Ids:
    return np.full(len(like), value, np.int64)


def _wait_ends(trace: Trace, waits: WorkWaits) -> tuple[Ids, Times]:
    """The distinct waiting calls, and the time at which each wait is over."""
    calls, index = np.unique(waits.call, return_inverse=True)
    start = trace.events["start_ns"][calls]
    until = start.copy()
    np.maximum.at(until, index, waits.until_ns)
    return calls, np.minimum(until, start + trace.events["duration_ns"][calls])
