"""When devices and the host do not compute, and why."""

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from stepscope.base.arrays import Floats, Ids, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.device.collectives import is_communication_wait
from stepscope.facts.annotate.device.one_off_costs import one_off_costs
from stepscope.facts.annotate.jax.calls import is_compiled_call, is_wait
from stepscope.facts.annotate.links.launches import (
    clock_error,
    device_work,
    is_graph_launch,
    launch_of,
    launched_before_recording,
    of_rank,
    on_host,
    shows_cpu,
)
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.missing_work import work_is_missing
from stepscope.facts.annotate.steps.step_table import events_in_steps, step_lengths, windows_of
from stepscope.facts.annotate.steps.windows import unrecorded_work_end
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import innermost
from stepscope.trace.row_order import count_within, rows_by_key
from stepscope.trace.schema import IDLE, IDLE_CAUSES
from stepscope.trace.sets import distinct, mask_of, members
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_Gaps = tuple[Ids, Times, Times, Ids]  # step, start, end and cause (index in `IDLE_CAUSES`) of each
_UNCERTAIN = 0.1  # of the steps: more idle time may have another cause, since two clocks differ
LONGEST_LAUNCH_NS = 100_000  # work that starts later after its launch waits for other work
_WAITS = re.compile(
    r"Synchronize|^(cuda|hip)Memcpy(2D|3D)?$|^cuMemcpy\w*(HtoD|DtoH)(_v2)?$|StreamWaitValue"
    r"|^ur(QueueFinish|EventWait)"
)


def find_idle(trace: Trace) -> Trace:
    """Fill the table `idle`: the gaps in each device's computing within each step, by cause.

    A gap has as many causes as moments (docs/design/annotation.md, "Device time"), so idle time changes by
    no more than what a time in the trace does. What the trace does not show is `unknown`.
    """
    work = np.flatnonzero(device_work(trace))
    of_device = trace["tracks"]["device"][trace.events["track"][work]]
    devices, rank = distinct(of_device), trace.metadata.ranks[0]
    if not len(devices) or not len(trace["steps"]):
        return _with_busy_times(trace)
    once = one_off_costs(trace, rank).calls
    of_all = {  # what any of the devices may wait for
        "one_off": Intervals(*trace.events.spans(once[paces_device(trace)[once]])),
        "data": data_loading_times(trace),
        "communication": exposed_communication(trace, rank, trace["steps"]),
    }
    parts = [_idle_of_device(trace, work[of_device == device], once, of_all) for device in devices]
    step, start, end, cause = (np.concatenate([part[place] for part in parts]) for place in range(4))
    cause[np.isin(cause, _unknown_causes(trace, end - start))] = IDLE_CAUSES.index("unknown")
    columns: dict[str, Any] = {
        "step": step,
        "rank": np.full(len(step), rank),
        "device": np.repeat(devices, [len(part[0]) for part in parts]),
        "start_ns": start,
        "end_ns": end,
        "cause": Text(cause.astype(np.int8), IDLE_CAUSES),
    }
    return _with_busy_times(trace.with_table(Table(IDLE, columns)))


def _unknown_causes(trace: Trace, gaps: Times) -> Ids:
    """The causes that a trace cannot show, as indices in `IDLE_CAUSES`; `gaps` are the lengths of all.

    Where work is missing in the file the device may not even be idle; without the CPU's side, or with
    a clock that differs, nobody knows what it did.
    """
    causes, steps = np.arange(len(IDLE_CAUSES)), trace["steps"]
    error, _, _, is_certain = clock_error(trace)
    if not is_certain and error <= (steps["end_ns"] - steps["start_ns"]).max(initial=0):
        error = 0  # a wait may have been for other work
    uncertain = np.minimum(gaps, error).sum() > _UNCERTAIN * step_lengths(steps).sum()
    if work_is_missing(trace) or uncertain:
        return causes[causes != IDLE_CAUSES.index("communication")]
    return causes[(causes == IDLE_CAUSES.index("host")) & (not shows_cpu(trace))]


def busiest_device(trace: Trace, rank: int) -> int:
    """The device of a rank that computes longest in its steps, -1 if none works in them."""
    steps, idle = trace["steps"], trace["idle"]
    windows = Intervals(*windows_of(steps.take(steps["rank"] == rank)))
    devices = working_devices(trace, rank, windows)
    rows = idle["rank"] == rank
    length = (idle["end_ns"] - idle["start_ns"])[rows]
    spent = [int(length[idle["device"][rows] == device].sum()) for device in devices]
    return devices[int(np.argmin(spent))] if devices else -1


def working_devices(trace: Trace, rank: int, windows: Intervals) -> list[int]:
    """The devices of a rank that do any work in some windows, ascending.

    Work counts whether or not its launch is known.
    """
    events, tracks = trace.events, trace["tracks"]
    rows = np.flatnonzero(device_work(trace) & of_rank(trace, rank))
    start, end = events.spans(rows)
    here = windows.within(start, np.maximum(end, start + 1)) > 0
    return np.unique(tracks["device"][events["track"][rows[here]]]).tolist()


def turns(idle: Table, whole: int) -> int:
    """How long the device that idles least does so while another works, ns, by rows of `idle` of several.

    If it mostly works at once with others, as replicas do, only long waits for what was launched count,
    as of the stages of a pipeline. `whole` is the steps' length.
    """
    of = idle["device"]
    spans = {device: Intervals(*idle.spans(of == device)) for device in distinct(of).tolist()}
    first, *others = sorted(spans, key=lambda device: spans[device].total())
    least, others_idle = spans[first], reduce(Intervals.intersect, map(spans.__getitem__, others))
    both = least.intersect(others_idle).total()
    if 2 * (others_idle.total() - both) >= whole - least.total():
        return least.total() - both
    begin, end = idle.spans()
    waits = (end - begin >= LONGEST_LAUNCH_NS) & idle.text("cause").mask("launch", "synchronization")
    return Intervals(*idle.spans((of == first) & waits)).minus(others_idle).total()


def launch_latency(idle: Table, device: int) -> int:
    """How long a device idles between launches and the work that they start at once, ns."""
    begin, end = idle.spans((idle["device"] == device) & idle.text("cause").mask("launch"))
    return int((end - begin)[end - begin < LONGEST_LAUNCH_NS].sum())


def _with_busy_times(trace: Trace) -> Trace:
    """Fill busy and idle time of each step, of the device that computes longest."""
    steps, device = trace["steps"], busiest_device(trace, trace.metadata.ranks[0])
    if device < 0:
        return trace
    work = device_work(trace) & (trace["tracks"]["device"][trace.events["track"]] == device)
    busy = Intervals(*trace.events.spans(work)).within(*windows_of(steps))
    idle = step_lengths(steps) - busy
    return trace.with_table(steps.with_columns(device_busy_ns=busy, device_idle_ns=idle))


def _idle_of_device(trace: Trace, work: Rows, once: Rows, of_all: Mapping[str, Intervals]) -> _Gaps:
    """The gaps of one device, by step and cause."""
    steps, windows = trace["steps"], windows_of(trace["steps"])
    computing, communicating = busy_times(trace, work)
    rest = computing.union(communicating).gaps(int(windows[0].min()), int(windows[1].max()))
    causes = _gap_causes(trace, work, rest, once, of_all)
    causes["communication"] = causes["communication"].union(communicating)
    parts = [intervals.cut(*windows) for intervals in causes.values()]
    step, start, end = (np.concatenate([part[place] for part in parts]) for place in range(3))
    cause = np.repeat([IDLE_CAUSES.index(cause) for cause in causes], [len(part[0]) for part in parts])
    order = np.argsort(step, kind="stable")
    return steps["step"][step[order]], start[order], end[order], cause[order]


def busy_times(
    trace: Trace, work: Rows, apart: tuple[str, ...] = ("communication",)
) -> tuple[Intervals, Intervals]:
    """When some work of one device runs that is not of the categories `apart`, and when only these do."""
    events = trace.events
    is_apart = events.text("category").mask(*apart)[work]
    start, end = events.spans(work)
    others = Intervals(start[~is_apart], end[~is_apart])
    return others, Intervals(start[is_apart], end[is_apart]).minus(others)


def copy_times(trace: Trace, work: Rows) -> Intervals:
    """When some work of one device copies or fills memory, and does nothing else."""
    return busy_times(trace, work, ("memcpy", "memset"))[1]


def _gap_causes(
    trace: Trace, work: Rows, rest: Intervals, once: Rows, of_all: Mapping[str, Intervals]
) -> dict[str, Intervals]:
    """The gaps of a device, `rest`, divided at each change of what the CPU does."""
    fed, taken = (_feed_times(trace, work, name) for name in ("infeed", "outfeed"))
    causes = {"data": rest.intersect(fed), "host": rest.minus(fed).intersect(taken)}
    rest = rest.minus(fed).minus(taken)
    times = {
        "launch": _pending_times(trace, work, once),
        **of_all,
        "synchronization": time_blocked(trace, work),
    }
    for cause, time in times.items():
        causes[cause] = rest.intersect(time).union(causes.get(cause, Intervals([], [])))
        rest = rest.minus(time)
    return {**causes, "host": causes["host"].union(rest)}


def _feed_times(trace: Trace, work: Rows, operation: str) -> Intervals:
    """When the device of some work waits in a program for the host, as TPUs do.

    In `infeed` it waits for its next batch, in `outfeed` until its results are taken.
    """
    events, device = trace.events, trace["tracks"]["device"][trace.events["track"]]
    waits = events.text("name").where(lambda name: name.startswith(operation))
    waits &= events.text("category").mask("sync") & (device == device[work[0]])
    return Intervals(*events.spans(waits))


def _pending_times(trace: Trace, work: Rows, once: Rows) -> Intervals:
    """When work is launched and has not begun.

    A launch of a program or a graph, or with one-off costs, or within them, has launched nothing until
    these have ended.
    """
    events, call = trace.events, launch_of(trace)[work]
    begin, end = events.spans()
    start, call = begin[work][call >= 0], call[call >= 0]
    is_once, is_call = (mask_of(rows, len(events)) for rows in (once, call))
    around, within = innermost(events["parent"], is_once)[call], innermost(events["parent"], is_call)[once]
    launched = begin.copy()
    whole = events.text("name").where(lambda name: is_compiled_call(name) or is_graph_launch(name))[call]
    launched[call[whole]] = end[call[whole]]  # of many kernels, at the end of the call
    launched[call[around >= 0]] = end[around[around >= 0]]
    np.maximum.at(launched, within[within >= 0], end[once[within >= 0]])
    return Intervals(launched[call], start)


def paces_device(trace: Trace) -> Mask:
    """Events of the threads that a device waits for: the loop's, and those that launch kernels.

    Others, such as a thread that watches collectives, may be blocked all the time.
    """
    events, launches = trace.events, trace["launches"]
    kernels = events.text("category").mask("kernel")[launches["device_event"]]
    paces = mask_of(events["track"][launches["cpu_event"][kernels]], len(trace["tracks"]))
    paces[main_track(trace)] = True
    return members(events["track"], paces)


def data_loading_times(trace: Trace) -> Intervals:
    """When the training loop loads data.

    Where ranges mark that, what the loop does between two of them is something else.
    """
    runs, events = trace["stages"], trace.events
    runs = runs.take(runs.text("stage").mask("data_loading"))
    loads = events.text("stage").mask("data_loading") & (events["track"] == main_track(trace))
    is_range = events.text("category").mask("annotation")
    is_range |= events.text("name").where(lambda name: name.startswith("enumerate("))
    ranges, parts = (Intervals(*events.spans(np.flatnonzero(rows))) for rows in (loads & is_range, loads))
    marked = ranges.within(*runs.spans()) > 0
    exact = Intervals(*runs.spans(marked)).intersect(parts).union(ranges)
    return exact.union(Intervals(*runs.spans(~marked)))


def blocks(name: str) -> bool:
    """Whether a call of this name returns when a device has done what was launched."""
    return is_wait(name) or bool(_WAITS.search(name))


def time_blocked(trace: Trace, work: Rows) -> Intervals:
    """When the thread of the training loop, or of autograd, was blocked on a device."""
    events = trace.events
    end = events.spans()[1]
    waits = events.text("category").mask("runtime") & events.text("name").where(blocks)
    caller = launch_of(trace)[work]
    copy = (caller >= 0) & events.text("category").mask("memcpy")[work]
    waits[caller[copy][awaits_copy(trace, caller[copy], work[copy])]] = True
    waits[full_queue_launches(trace, work)] = True
    waits &= paces_device(trace)
    return Intervals(events["start_ns"][waits], end[waits])


_NOT_STAGED = re.compile("Pinned|DtoD|PtoP")  # such copies go on after their calls


def may_stage(trace: Trace, copies: IntArray) -> Mask:
    """Whether copies may pass through a staging buffer: the call returns when all is in it."""
    return ~trace.events.text("name").where(lambda name: bool(_NOT_STAGED.search(name)))[copies]


def awaits_copy(trace: Trace, calls: IntArray, copies: IntArray) -> Mask:
    """Whether each call lasts until its copy has ended; one that stages, and is no launch, until half
    of it has, as the rest is on its way then."""
    events = trace.events
    start, end = events.spans(copies)
    staged = may_stage(trace, copies) & (events["duration_ns"][calls] >= LONGEST_LAUNCH_NS)
    return np.asarray(events.spans(calls)[1] >= np.where(staged, (start + end) // 2, end))


# -- launches into a full queue

_ROOM = 1024  # launches in the queue of a channel, as CUDA has it
_FULL = 500  # works in the queue, about half of its room
_MOST = 0.95  # of the works that were ever in the queue
_LONG, _LONGER = 2, 8  # times the usual launch: while the queue holds most, and many, works
_FULL_EVENT = "Command Buffer Full"  # CUPTI's name of such a wait, where it is recorded
_UNDELAYED = 10  # percentile of the lengths of launches


def full_queue_launches(trace: Trace, work: Rows) -> Rows:
    """Launches that took several times as long as usual while the queue was full, events.id.

    It was full if hundreds of works had been launched and not ended, or if the trace records it;
    and it may have been while the device did work from before the recording. A copy takes longer by
    itself, after a pause and by its bytes.
    """
    events = trace.events
    caller = launch_of(trace)[work].astype(np.int64)
    calls = distinct(caller[caller >= 0])
    if not len(calls):
        return calls
    length, usual = events["duration_ns"][calls], usual_launch_ns(trace, calls)
    begin, end = events.spans(calls)
    ended = np.searchsorted(np.sort(events.spans(work)[1]), end)
    launched = np.searchsorted(np.sort(events["start_ns"][caller[caller >= 0]]), end)
    queued = launched + min(launched_before_recording(trace)[work].sum(), _ROOM) - ended
    rank = int(trace["tracks"]["rank"][events["track"][work[0]]])
    unseen = end <= unrecorded_work_end(trace, rank)  # what else is queued then is not known
    noted = events["start_ns"][events.text("name").mask(_FULL_EVENT)]
    many = unseen | (queued >= _FULL) | (count_within(noted, begin, end) > 0)
    most = unseen | (queued >= max(_FULL, _MOST * queued.max()))
    most &= ~events.text("name").where(lambda name: "Memcpy" in name)[calls]
    return calls[(many & (length > _LONGER * usual)) | (most & (length > _LONG * usual))]


def usual_launch_ns(trace: Trace, calls: Rows) -> Floats:
    """What each launch takes the CPU where nothing delays it, ns, as calls of its name show it."""
    length, names = trace.events["duration_ns"][calls], trace.events.text("name").codes[calls]
    least = np.percentile(length, _UNDELAYED) if len(calls) else 0
    usual = np.full(len(calls), least, np.float64)
    for rows in rows_by_key(names).values():
        usual[rows] = max(least, np.percentile(length[rows], _UNDELAYED))
    return usual


# -- idle time of the host


def python_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When no thread of a rank computes, loads data or communicates, within the given steps.

    Backward is excluded: autograd runs no Python, so idle time there is unrecorded work. A thread that
    only watches the device works on nothing.
    """
    events = trace.events
    works = _computes(events) & (paces_device(trace) | ~events.text("name").where(blocks))
    works |= events.text("category").mask("communication")
    works |= events.text("stage").mask("data_loading")
    runs = trace["stages"]
    backward = runs.text("stage").mask("backward") & (runs["rank"] == rank)
    busy = _spans(trace, rank, steps, works).union(Intervals(*runs.spans(backward)))
    return Intervals(*steps.spans()).minus(busy)


def exposed_communication(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When a rank communicates on the host and none of its threads computes or loads data, within the steps.

    Operators that wait for a collective, and those that call them, do not compute meanwhile.
    """
    events = trace.events
    communicates = _spans(trace, rank, steps, events.text("category").mask("communication") & on_host(trace))
    return communicates.intersect(Intervals(*steps.spans())).minus(busy_time(trace, rank, steps))


def busy_time(trace: Trace, rank: int, steps: Table) -> Intervals:
    """When any thread of a rank computes or loads data; waiting for a collective is neither."""
    loads = trace.events.text("stage").mask("data_loading")
    return _computing(trace, rank, steps).union(_spans(trace, rank, steps, loads))


def _computing(trace: Trace, rank: int, steps: Table) -> Intervals:
    events = trace.events
    waits = events.text("name").where(is_communication_wait)
    computes = _computes(events) & ~waits
    on_waiting_thread = np.isin(events["track"], np.unique(events["track"][waits]))
    waiting = _spans(trace, rank, steps, waits)
    here = _spans(trace, rank, steps, computes & on_waiting_thread).minus(waiting)
    return here.union(_spans(trace, rank, steps, computes & ~on_waiting_thread))


def _computes(events: Table) -> Mask:
    """Operators and runtime calls; ranges written by a capture only mark Python code."""
    markers = events.text("name").where(lambda name: name.startswith("stepscope."))
    return events.text("category").mask("cpu_op", "runtime") & ~markers


def _spans(trace: Trace, rank: int, steps: Table, chosen: Mask) -> Intervals:
    rows = np.flatnonzero(events_in_steps(trace, rank, steps["step"]) & chosen)
    return Intervals(*trace.events.spans(rows))
