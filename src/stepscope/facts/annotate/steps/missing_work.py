"""Device work that was launched and is not in the file: records that a recorder lost.

Only calls that always start work count: launches of kernels and of graphs. Copies and fills of no
bytes, copies within the host, host functions and cooperative launches leave no record by design.
Calls between the begin and the end of a stream's capture start nothing: they are recorded into a
graph. Where calls were lost with their work, the operator that made them counts.
`step` is the index of the step of each event, or -1, shape (events,).
"""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.links.cuda_graphs import capture_of
from stepscope.facts.annotate.links.launches import (
    at_launch,
    clock_error,
    device_work,
    is_graph_launch,
    launch_of,
    launched_before_recording,
    on_host,
)
from stepscope.facts.annotate.range_names import ends_update
from stepscope.facts.annotate.steps.step_table import messages, number_list, step_lengths, step_marks
from stepscope.trace.intervals import Intervals
from stepscope.trace.missing_records import (
    CLOCK_APART,
    GRAPHS_VARY,
    MERGED_RANKS,
    NOTES,
    RECORDS_MISSING,
    STEPS_LEFT_OUT,
    WITHHELD,
    WORK_MISSING,
)
from stepscope.trace.nesting import inherit, innermost, is_inside, outermost
from stepscope.trace.row_order import begins_run, inverse
from stepscope.trace.sets import distinct, mask_of
from stepscope.trace.trace import Trace

# Of any vendor: cudaLaunchKernelExC, hipExtModuleLaunchKernel, aclrtLaunchKernel, urEnqueueKernelLaunch.
_KERNEL_LAUNCH = re.compile(r"^(?!\w*Cooperative)[a-z]\w*(Launch\w*Kernel|KernelLaunch)")
_SYNCHRONIZE = re.compile(r"^[a-z]+((Device|Thread|Ctx)Synchronize|SynchronizeDevice)")
# What no process without a device calls; profilers synchronize devices themselves, RNNs on a CPU ask cuDNN.
_USES_DEVICE = re.compile(
    r"^[a-z]+(Stream(Synchronize|WaitEvent)|Event(Record|Synchronize)|SynchronizeStream)"
    r"|^ur(Queue|Enqueue|Event)[A-Z]|^(nccl|rccl|hccl|xccl):"
    r"|^aten::_?(cudnn|miopen)_(?!is_acceptable)|^aten::_?pin_memory$"
    r"|^aten::_(scaled_dot_product_)?(flash|efficient|cudnn)_attention(?!_for_cpu)"
    r"|^aten::(_?mps_|_lstm_mps)|^aten::\w+(_overrideable|_for_mps)$|^(npu|hpu|torch_mlu|xla)::"
)
_OF_DEVICE_OPTIMIZER = re.compile(r"^aten::_foreach_(add|addc\w+|lerp|sqrt)_?$")  # by default on devices only
_ASYNC_COPY = re.compile(r"^[a-z]+Memcpy\w*Async")
_MOSTLY = 0.5  # of some calls: where so many of a copy's name have work, all should
_WAITS_NS = 1_000_000  # reading a tensor's value takes microseconds on a CPU, and else waits for a device
_FEWEST = 3  # steps of the same operators, which show what each of them launches
_OFTEN = 1 / 3  # of these steps: an operator launches in more than the first
_PENDING_NS = 1_000_000  # a device that works until so short before the end has more work to do


class LaunchCalls(NamedTuple):
    """Calls that start device work, in order of start; arrays of shape (n,)."""

    rows: Rows  # events.id
    missing: Mask  # whether no work of the call is in the file, or of a graph only a part
    pending: Mask  # whether that is since the recording ended before the work did
    graphs: Mask  # whether the call starts a graph
    unsure: Mask  # whether a part of the graph's work is lost, or did not run

    @property
    def lost(self) -> Mask:
        """Calls whose work ended within the recording and is not in it."""
        return self.missing & ~self.pending


def launch_calls(trace: Trace, step: IntArray) -> LaunchCalls:
    """The calls that start device work, and which of them have none in the file."""
    events = trace.events
    names = events.text("name")
    graphs = names.where(is_graph_launch)
    starts_work = graphs | names.where(lambda name: bool(_KERNEL_LAUNCH.match(name)))
    starts_work &= events.text("category").mask("runtime")
    rows = np.flatnonzero(outermost(events["parent"], starts_work))
    missing = ~_with_work(trace, rows) & (capture_of(trace)[rows] < 0)
    lost = np.append(_silent_operators(trace, step), _copies(trace) if missing.any() else ())
    rows = np.append(rows, lost.astype(np.int64))
    missing = np.append(missing, np.ones(len(lost), np.bool_))
    order = np.argsort(rows, kind="stable")
    rows, missing = rows[order], missing[order]
    is_merged = trace["warnings"].text("code").mask(MERGED_RANKS).any()
    unlinked = device_work(trace) & (launch_of(trace) < 0) & ~launched_before_recording(trace)
    unlinked &= events.text("category").mask("kernel", "communication")
    if is_merged or unlinked.sum() >= missing.sum():
        missing[:] = False  # it is there, without a link to its launch
    unsure = np.zeros(len(rows), np.bool_)
    return LaunchCalls(rows, missing, _pending(trace, rows, missing), graphs[rows], unsure)


def _silent_operators(trace: Trace, step: IntArray) -> Rows:
    """Operators that call no device where others at their place in a step often do.

    Of steps with the most usual number of operators; each thread's operators have an order.
    """
    events = trace.events
    operators = outermost(events["parent"], events.text("category").mask("cpu_op") & on_host(trace))
    of_call = innermost(events["parent"], operators)
    active, launched = (np.zeros(len(events) + 1, np.bool_) for _ in range(2))  # the last is for no operator
    launches = trace["launches"]["cpu_event"]
    launched[of_call[launches]] = True
    active[of_call[events.text("category").mask("runtime")]] = True
    rows = np.flatnonzero(operators & (step >= 0))
    rows = rows[np.lexsort((events["track"][rows], step[rows]))]
    number = np.bincount(step[rows])
    usual = int(np.bincount(number[number > 0]).argmax()) if len(rows) else 1
    alike = rows[number[step[rows]] == usual].reshape(-1, usual)
    if len(alike) < _FEWEST:
        return alike[:0, 0]
    same = (events["name"][alike] == events["name"][alike[0]]).all(axis=0)
    silent = same & ~(active | launched)[alike] & (launched[alike].mean(axis=0) > _OFTEN)
    outside = launches[(of_call[launches] < 0) & (step[launches] >= 0)]  # of all operators
    more = np.bincount(step[outside], minlength=len(number))[step[alike[:, 0]]]
    return alike[silent & (silent.sum(axis=1) > more - more.min())[:, np.newaxis]]


def _with_work(trace: Trace, rows: Rows) -> Mask:
    """Whether device work is linked to each call, or to one inside it, with a duration if others lack one."""
    call, work = work_of_calls(trace, rows)
    without = trace["warnings"].text("code").mask("no_duration", "negative_duration", "long_duration")
    timed = (trace.events["duration_ns"][work] > 0) | (not without.any())
    return mask_of(call[timed], len(rows))


def _copies(trace: Trace) -> Rows:
    """Asynchronous copies without work, where most copies by the same call have some."""
    events = trace.events
    rows = np.flatnonzero(events.text("name").where(lambda name: bool(_ASYNC_COPY.match(name))))
    rows = rows[capture_of(trace)[rows] < 0]
    has = _with_work(trace, rows)
    code = events["name"][rows]
    of_name, with_work = np.bincount(code), np.bincount(code, has)
    return rows[~has & (with_work >= _MOSTLY * of_name)[code]]


def _pending(trace: Trace, rows: Rows, missing: Mask) -> Mask:
    """Whether the work of each call may end after the recording: a device works to the end.

    The last calls alone; nothing may have waited for their work.
    """
    events = trace.events
    end = events.spans()[1]
    work = device_work(trace)
    done = int(end[work].max(initial=-1))
    longest = int(events["duration_ns"][work].max(initial=0))
    if not missing.any() or int(end.max()) - done > longest + _PENDING_NS:
        return np.zeros(len(rows), np.bool_)
    waits = events.text("name").where(lambda name: bool(_SYNCHRONIZE.match(name)))
    waited = int(events["start_ns"][waits].max(initial=-1))
    launched = max(int(events["start_ns"][rows[~missing]].max(initial=-1)), waited)
    missing = missing & ~np.isin(rows, trace["launches"]["cpu_event"])  # what began, without a duration
    return missing & (events["start_ns"][rows] > launched)


# -- steps that have all their work


def with_partial_graphs(trace: Trace, calls: LaunchCalls, step: IntArray) -> LaunchCalls:
    """The calls, where launches of graphs that lost a part of their work count as missing."""
    graphs = np.flatnonzero(calls.graphs)
    partial = partial_replays(trace, calls.rows[graphs], step[calls.rows[graphs]])
    missing, unsure = calls.missing.copy(), calls.unsure.copy()
    missing[graphs[partial.lost]] = unsure[graphs[partial.unsure]] = True
    return calls._replace(missing=missing, unsure=unsure)


def complete_steps(trace: Trace, calls: LaunchCalls, step: IntArray, count: int) -> Mask:
    """Which steps' launches all have their work, and whose beginning is known, bool, shape (count,).

    A step begins when the work before it ends, so the last launch before it needs its work too.
    """
    complete = np.ones(count, np.bool_)
    of_call = step[calls.rows]
    before = np.append(False, calls.missing[:-1]) & begins_run(of_call)
    wrong = of_call[(calls.missing | before) & (of_call >= 0)]
    complete[wrong] = False
    return complete


def warn_missing(trace: Trace, calls: LaunchCalls, step: IntArray, complete: Mask) -> Trace:
    """The trace with a warning about work that its steps lack; the table has the steps that are kept.

    `step` is as before any step was left out, and `complete` says which of these have all their
    work.
    """
    inside = step[calls.rows] >= 0
    if unsure := int((calls.unsure & inside).sum()):
        message = (
            f"{unsure} of {int((calls.graphs & inside).sum())} graph launches have less recorded device work "
            "than others of their graph: some nodes did not run, or their records were lost"
        )
        trace = trace.with_warnings([(GRAPHS_VARY, message, 1)])
    missing, number = calls.missing & inside, int((calls.missing & inside).sum())
    dropped = trace["warnings"].text("code").mask(RECORDS_MISSING).any()
    if not number:
        message = "the recorder lost records, and the file does not show which" if dropped else _silent(trace)
        return trace.with_warnings([(WORK_MISSING, message, 1)] if message else [])
    count = _count_of_missing(calls, missing, inside)
    if complete.any() and not complete.all():
        return trace.with_warnings([(STEPS_LEFT_OUT, f"{count}; {_kept(trace)}", 1)])
    if (calls.lost & inside).any():
        return trace.with_warnings([(WORK_MISSING, count, 1)])
    message = f"{count}: the recording ended before that work did"
    return trace.with_warnings([("work_after_recording", message, 1)])


def warn_clocks(trace: Trace) -> Trace:
    """The trace with a warning if the clocks of CPU and device differ: by more than a step, or less."""
    error, steps = clock_error(trace), trace["steps"]
    if not error.times:
        return trace
    is_apart = error.is_certain and error.times > _MOSTLY * len(trace["launches"])
    if is_apart and error.ns * len(steps) > step_lengths(steps).sum():
        return trace.with_warnings([(CLOCK_APART, f"{error.shown_by} by more than a step", error.times)])
    message = f"{error.shown_by}, so causes of idle time are uncertain"
    return trace.with_warnings([("device_clock", message, error.times)])


def _silent(trace: Trace) -> str:
    """What shows that work is missing of which the file has nothing; empty if nothing does."""
    names, ranges = trace.events.text("name"), trace.events.text("category").mask("annotation")
    if ranges.all() and not (trace.metadata.capture or step_marks(trace).all()):
        return "the file has ranges, and nothing of what runs in them"
    uses = names.where(lambda name: bool(_USES_DEVICE.match(name)))
    reads = names.mask("aten::_local_scalar_dense")
    if reads.any() and np.median(trace.events["duration_ns"][reads]) >= _WAITS_NS:
        uses |= reads
    if trace.metadata.devices and not trace.events.text("category").mask("runtime").any():
        of_update = is_inside(trace.events["parent"], names.where(ends_update))
        uses |= of_update & names.where(lambda name: bool(_OF_DEVICE_OPTIMIZER.match(name)))
    if not uses.any() or device_work(trace).any():
        return ""
    return f"the file has no device work, although {names[int(uses.argmax())]} uses a device"


def _kept(trace: Trace) -> str:
    kept = trace["steps"]["step"].tolist()
    steps = f"step{'s' * (len(kept) > 1)} {number_list(kept)}"
    return f"the figures are of {steps}, whose launches all have theirs"


def _count_of_missing(calls: LaunchCalls, missing: Mask, inside: Mask) -> str:
    """How many launches have no work, in words: `19 of 36 launches lack recorded device work`."""
    only_graphs = calls.graphs[missing].all()
    lack, among = (
        ("graph launches lack some", inside & calls.graphs) if only_graphs else ("launches lack", inside)
    )
    return f"{int(missing.sum())} of {int(among.sum())} {lack} recorded device work"


def work_is_missing(trace: Trace, rank: int | None = None) -> str:
    """Why the busy and idle times of a rank, or of any, are not known; empty if they are."""
    return next(iter(messages(trace, rank, *WITHHELD)), "")


def notes_on_missing(trace: Trace, rank: int) -> list[str]:
    """What a report says first of the records of a rank that are not in the file."""
    return messages(trace, rank, *NOTES)


# -- replays of a CUDA graph that have less work in the file than others: lost, or left out
# Conditional nodes run their bodies in some replays only, and a recorder may lose a record. Time tells
# them apart: a lost record leaves the device idle for as long as its work took, while work that was left
# out makes room for what follows. Where the device has nothing to do after a replay, nothing shows which.
# A recorder may lose the same nodes in each replay, too: then the device seems to pause in the graph.

_IDLE_MOSTLY = 0.5  # of the time that a missing kernel takes: idle for less, the device did not run it
_NOTABLE = 0.02  # of the work of a replay: less missing changes no figure
_PAUSE_NS = 1_000_000  # between two nodes a device takes microseconds
_NEVER = np.iinfo(np.int64).max


class PartialReplays(NamedTuple):
    """Replays with less work than others of their graph; positions among the launches given."""

    lost: Rows  # some of their work is not in the file
    unsure: Rows  # nothing shows whether it is lost, or did not run


def partial_replays(trace: Trace, launches: Rows, step: IntArray) -> PartialReplays:
    """Replays that lost a part of their work, or may have.

    The launches at one place of steps that launch as many graphs are of one graph; but what has
    work of its own is another graph, and so is a replay with as much work as one at another place,
    since steps may launch several graphs in any order.

    `launches` are ids of events, ascending, and `step` has the index of the step of each, or -1.
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
    number = inverse(rows, len(trace.events))
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

        `full` has the replays of the graph that lack nothing.
        """
        usual, most = np.median(self.idle[full]), self.idle[full].max()
        begin = self.first[full[0]]
        name, length = (column[begin:][: self.works[full[0]]] for column in (self.name, self.length))
        shortest = length[np.isin(name, list(missing))].min()
        least = max(_IDLE_MOSTLY * shortest, _NOTABLE * self.busy[full[0]])
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
    begin = events["start_ns"]
    waits = events.text("category").mask("runtime")
    waits &= events.text("name").where(lambda name: "Synchronize" in name)
    wait_begin, wait_end = events.spans(np.flatnonzero(waits))
    since = np.append(at_launch(trace, begin)[work], wait_begin)
    until = np.append(begin[work], wait_end)
    order = np.argsort(until, kind="stable")
    place = np.searchsorted(until[order], last)
    end = int(events.spans()[1].max())
    since, until = (np.append(times[order], end)[place] for times in (since, until))
    return np.where(since < called, until, since), until  # what began before the launch is for other work
