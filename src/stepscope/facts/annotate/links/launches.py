"""Link device work to the CPU call that launched it."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Array, Codes8, Ids, Ids32, Mask, Times
from stepscope.facts.annotate.range_names import is_step
from stepscope.trace.concat import stacked
from stepscope.trace.nesting import inherit, innermost, outermost
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.row_order import last_of_key, places_among
from stepscope.trace.schema import DEVICE_WORK, LAUNCHES
from stepscope.trace.sets import distinct, members
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def on_host(trace: Trace) -> Mask:
    """Events on CPU tracks, bool, shape (events,).

    The kind of a track is not enough: communication tracks exist on both sides.
    """
    return members(trace.events["track"], trace["tracks"]["device"] < 0)


def of_rank(trace: Trace, rank: int) -> Mask:
    """Events on the tracks of a rank, bool, shape (events,)."""
    return members(trace.events["track"], trace["tracks"]["rank"] == rank)


def shows_cpu(trace: Trace) -> bool:
    """Whether the trace shows what the CPU does: more than ranges and marks of steps."""
    work = trace.events.text("category").mask("cpu_op", "python", "runtime", "communication")
    return bool((work & on_host(trace)).any())


def marked_on_devices(trace: Trace) -> bool:
    """Whether steps are marked, and on devices only, as in a TPU's profile without its host."""
    host = on_host(trace)
    marks = trace.events.text("name").where(is_step)
    if not marks.any():
        iterating = np.unique(trace["iterations"]["track"])
        return bool(len(iterating)) and not host[np.isin(trace.events["track"], iterating)].any()
    return not bool(host[marks].any())


def device_work(trace: Trace) -> Mask:
    """Kernels, copies, memsets and collectives that run on a device, bool, shape (events,)."""
    return trace.events.text("category").mask(*DEVICE_WORK) & ~on_host(trace)


_CERTAIN = ("correlation", "flow")
_CLOCKS_AGREE_NS = 10_000  # no recorder is more exact
_FEW_ODD = 0.01  # of all launches
_LATE_NS = 100_000  # an idle device starts in 5 to 50 µs
_CONSTANT = 0.1  # of a delay: by how much it varies if it is an error of the clock
_MANY_GAPS, _MANY_CALLS = 10, 50  # fewer may be alike by chance
_COARSE_NS = 15_000  # and more between two ticks of a CPU's clock: most tick every 1 to 100 ns
_DIFFER = "the clocks of CPU and device differ"
_WAITS_FOR_ALL = re.compile(r"^((cuda|hip)Device|cuCtx)Synchronize$")
_WAITS = re.compile(r"^((cuda|hip)(Device|Stream)|cu(Ctx|Stream))Synchronize$")
_EVIDENCE = ("correlation", "flow", "external_id", "order")
_UNLINKED = ("launched_before_recording", "unlinked_device_work")  # codes of warnings
_FALLBACKS = {
    "external_id": "their operator's external id: there is no correlation id",
    "order": "order in time: there is no correlation id",
}


def link_launches(trace: Trace) -> Trace:
    """Link device work to its launch: by correlation, flow arrow, external id, or order in time.

    One call may start many pieces of work (a CUDA graph). The table `launches` records the evidence
    of each link. Work that remains unlinked is counted in a warning.

    Source: the trace-event output of libkineto: `args.correlation`, `ac2g` arrows,
    `args."External id"`.
    """
    events = trace.events
    device = np.flatnonzero(device_work(trace)).astype(np.int32)
    caller = _by_correlation(events, device)
    evidence = np.zeros(len(device), np.int8)
    for code, link in ((1, tails_of_arrows), (2, by_external_id)):
        unlinked = np.flatnonzero(caller < 0)
        caller[unlinked] = link(trace, device[unlinked])
        evidence[unlinked] = code
    ordered = by_order(trace, device, caller) if (caller < 0).any() else caller
    evidence[(caller < 0) & (ordered >= 0)] = 3
    caller = np.where(caller < 0, ordered, caller)
    linked = caller >= 0
    table = _links(events, caller[linked], device[linked], evidence[linked])
    trace = _warn_fallbacks(trace.with_table(table))
    return _warn_unlinked(trace, device[~linked])


def _links(events: Table, calls: Ids32, work: Ids32, evidence: Codes8) -> Table:
    """Rows of `launches`, each from a call to its work."""
    columns: dict[str, Any] = {
        "cpu_event": calls,
        "device_event": work,
        "delay_ns": events["start_ns"][work] - events["start_ns"][calls],
        "evidence": Text(evidence, _EVIDENCE),
    }
    return Table(LAUNCHES, columns)


def with_launches_by_order(trace: Trace, calls: Ids32, work: Ids32) -> Trace:
    """The trace with further links, from calls to device work, that follow from their order."""
    if not len(work):
        return trace
    evidence = np.full(len(work), _EVIDENCE.index("order"), np.int8)
    joined = stacked([trace["launches"], _links(trace.events, calls, work, evidence)])
    joined = joined.take(np.argsort(joined["device_event"], kind="stable"))
    trace = trace.with_table(joined).without_warnings(_UNLINKED)
    unlinked = device_work(trace) & (launch_of(trace) < 0)
    trace = _warn_unlinked(trace, np.flatnonzero(unlinked).astype(np.int32))
    return trace.with_warnings([("linked_by_order", _by_evidence("order"), len(work))])


def launch_of(trace: Trace) -> Ids32:
    """The CPU event that launched each event, int32, shape (events,), -1 where none is known."""
    caller = np.full(len(trace.events), -1, np.int32)
    caller[trace["launches"]["device_event"]] = trace["launches"]["cpu_event"]
    return caller


def caller_of(trace: Trace) -> Ids32:
    """What asked for each event, or -1: its launch; where another process launches, as CANN, the operator."""
    caller, category = launch_of(trace), trace.events.text("category")
    rows = np.flatnonzero((caller >= 0) & category.mask("other")[caller])
    if len(rows):
        asked = tails_of_arrows(trace, rows, category.mask("cpu_op"))
        caller[rows] = np.where(asked >= 0, asked, caller[rows])
    return caller


def at_launch(trace: Trace, values: Array, by: Callable[[Trace], Ids32] = launch_of) -> Array:
    """The value of each event's launch, else its own where no launch is known, shape (events,)."""
    caller = by(trace)
    return np.where(caller >= 0, values[caller], values)


def launching_operator(trace: Trace) -> Ids:
    """The innermost operator or range around the launch of each event, or -1."""
    events = trace.events
    around = inherit(events["parent"], np.where(events.text("category").mask("runtime"), -1, events["id"]))
    return np.append(around, -1)[caller_of(trace)].astype(np.int64)


def _by_correlation(events: Table, device: Ids32) -> Ids32:
    """The outermost runtime call with the same correlation id, or -1.

    Sessions that were joined in one file repeat ids: the last call before the work counts.
    """
    ids, parent = events["correlation"], events["parent"]
    runtime = events.text("category").mask("runtime") & (ids >= 0)
    inner = runtime & (parent >= 0) & runtime[parent] & (ids == ids[parent])
    calls = np.flatnonzero(runtime & ~inner)
    caller = last_of_key(ids[calls], calls, ids[device], device)  # rows are in order of start
    return np.append(calls, -1)[caller].astype(np.int32)


def tails_of_arrows(trace: Trace, work: Ids32 | Ids, chosen: Mask | None = None) -> Ids32:
    """The chosen event, by default any of the CPU, at the tail of an arrow to each piece of work, or -1."""
    flows = trace["flows"]
    tied = (flows["source_event"] >= 0) & (flows["target_event"] >= 0)
    source, target = flows["source_event"][tied], flows["target_event"][tied]
    kept = (~trace.events.text("category").mask(*DEVICE_WORK) if chosen is None else chosen)[source]
    return np.append(source[kept], -1)[places_among(target[kept], work)].astype(np.int32)


def _warn_fallbacks(trace: Trace) -> Trace:
    """Warn about launches that are linked by weaker evidence than a correlation id or an arrow."""
    evidence = trace["launches"].text("evidence")
    counts = {name: int(evidence.mask(name).sum()) for name in _FALLBACKS}
    return trace.with_warnings(
        (f"linked_by_{name}", _by_evidence(name), count) for name, count in counts.items() if count
    )


def _by_evidence(name: str) -> str:
    return f"device work is linked to its launches by {_FALLBACKS[name]}"


class ClockError(NamedTuple):
    """By how much the clocks of CPU and device differ at least, and what shows that."""

    ns: int
    shown_by: str  # in words, or empty if they agree
    times: int  # how often
    is_certain: bool  # whether no wait for other work explains it


def clock_error(trace: Trace) -> ClockError:
    """How wrong the times of CPU and device are against each other, if anything shows that.

    Device work starts before its launch, ends after the CPU has waited for it, or starts late on
    an idle device, always by as much; or the clock of the CPU is coarse.
    """
    launches = trace["launches"]
    certain = launches.text("evidence").mask(*_CERTAIN)
    late_ns, gaps = _late_on_idle_device(trace, certain)
    tick_ns = _tick(trace)
    for is_early, by_ns in ((True, -launches["delay_ns"]), (False, _late(trace))):
        odd = certain & (by_ns > max(_CLOCKS_AGREE_NS, tick_ns))
        if odd.sum() > _FEW_ODD * len(launches):
            what, where = ("starts", "before its launch") if is_early else ("ends", "after a wait for it")
            most = int(by_ns[odd].max())
            shown = f"device work {what} up to {milliseconds(most)} {where}: {_DIFFER}"
            return ClockError(most, shown, int(odd.sum()), is_early or late_ns > 0)
    if gaps >= _MANY_GAPS:
        late = f"work starts {milliseconds(late_ns)} late on an idle device"
        return ClockError(late_ns, f"{late}: {_DIFFER} or launches are held back", gaps, True)
    shown = f"the clock of the CPU ticks every {milliseconds(tick_ns)}: shorter events have no certain time"
    return ClockError(tick_ns, shown, 1, True) if tick_ns else ClockError(0, "", 0, False)


def _late_on_idle_device(trace: Trace, certain: Mask) -> tuple[int, int]:
    """How late work starts that ends a pause of all devices, ns, and how often; 0 if that varies.

    Programs and graphs, calls that launch several pieces of work, have much to do before they start.
    """
    events, launches = trace.events, trace["launches"]
    single = np.bincount(launches["cpu_event"])[launches["cpu_event"]] == 1
    start, end = events.spans(launches["device_event"])
    pause = start[1:] - np.maximum.accumulate(end)[:-1]
    ends_pause = np.append(False, pause > _CLOCKS_AGREE_NS)[: len(start)]
    delay = launches["delay_ns"][ends_pause & certain & single]
    least, most = np.percentile(delay, (0, 90)) if len(delay) else (0, 0)
    is_constant = least >= _LATE_NS and most - least <= _CONSTANT * least
    return (int(least), len(delay)) if is_constant else (0, 0)


def _tick(trace: Trace) -> int:
    """The step of the CPU's clock, ns, if it is coarse and the device's is not; else 0."""
    launches = trace["launches"]
    sides = [distinct(launches[side]) for side in ("cpu_event", "device_event")]
    if len(sides[0]) < _MANY_CALLS:
        return 0
    times = [np.concatenate(trace.events.spans(rows)) for rows in sides]
    of_cpu, of_device = (int(np.gcd.reduce(np.diff(each))) for each in times)
    return of_cpu if of_cpu >= _COARSE_NS > of_device else 0


def _late(trace: Trace) -> Times:
    """How long after the next wait for a device each launched work ends, ns; 0 where that is not known.

    A wait for a stream is one for the device if that has one stream.
    """
    events, launches = trace.events, trace["launches"]
    work = launches["device_event"]
    streams = len(distinct(events["track"][work]))
    pattern = _WAITS_FOR_ALL if streams > 1 else _WAITS
    waits = np.flatnonzero(events.text("name").where(lambda name: bool(pattern.match(name))))
    if not len(waits) or len(distinct(trace["tracks"]["device"][events["track"][work]])) > 1:
        return np.zeros(len(work), np.int64)
    begin, end = events.spans(waits)
    call_end = events.spans(launches["cpu_event"])[1]
    following = np.append(end, _LARGEST)[np.searchsorted(begin, call_end)]
    return np.maximum(events.spans(work)[1] - following, 0)


def _warn_unlinked(trace: Trace, unlinked: Ids32) -> Trace:
    """Warn about unlinked work; work launched before the recording is reported separately."""
    before = launched_before_recording(trace)[unlinked]
    unknown = "belongs to the step in which it runs"
    if not marked_on_devices(trace):
        unknown += "; its stage is unknown"
    messages = {
        "launched_before_recording": (
            "device work launched before the recording began",
            "belongs to no step, but the device counts as busy",
            before,
        ),
        "unlinked_device_work": ("device work without a launch in the file", unknown, ~before),
    }
    length = trace.events["duration_ns"][unlinked]
    return trace.with_warnings(
        (code, f"{what} ({milliseconds(length[mask].sum())} in all); it {where}", int(mask.sum()))
        for code, (what, where, mask) in messages.items()
        if mask.any()
    )


def launched_before_recording(trace: Trace) -> Mask:
    """Device work that was in the queue when the recording began, bool, shape (events,).

    Its correlation id precedes all recorded calls, or it is ahead of all launched work in the queue
    of a device that is behind the CPU.
    """
    events = trace.events
    unlinked = device_work(trace)
    unlinked[trace["launches"]["device_event"]] = False
    if not len(trace["launches"]) or not unlinked.any():
        return np.zeros(len(events), np.bool_)
    ids = events["correlation"]
    calls = ids[events.text("category").mask("runtime") & (ids >= 0)]
    first_id = calls.min() if len(calls) else 0
    return unlinked & (((ids >= 0) & (ids < first_id)) | _ahead_in_queue(trace, unlinked))


def _ahead_in_queue(trace: Trace, unlinked: Mask) -> Mask:
    """Unlinked work that runs before all launched work, as streams run work in order of launch.

    The last of it ends after the first launch: the device was behind. Work whose launches no file
    shows, as that of some graphs, recurs later, and runs after a graph's launch.
    """
    begin, launches = trace.events["start_ns"], trace["launches"]
    device = trace["tracks"]["device"][trace.events["track"]]
    result = np.zeros(len(begin), np.bool_)
    for number in np.unique(device[launches["device_event"]]).tolist():
        linked = device[launches["device_event"]] == number
        here = np.flatnonzero(unlinked & (device == number))
        front = here[begin[here] < begin[launches["device_event"][linked]].min()]
        called = int(begin[launches["cpu_event"][linked]].min())
        result[front] = _is_queue(trace, front, here[len(front) :], called)
    return result


def _is_queue(trace: Trace, front: Ids, later: Ids, called: int) -> bool:
    """Whether unlinked work, ahead of what was `called` first, was queued before the recording."""
    events = trace.events
    graphs = events.text("name").where(is_graph_launch)
    graphs[trace["launches"]["cpu_event"]] = False
    end = int(events.spans(front)[1].max(initial=-1))
    recurs = np.isin(events["name"][front], events["name"][later]).any()
    return end > called and not recurs and not (events["start_ns"][graphs] < end).any()


# -- work without a correlation id: by external id, or by order in time

_EXTERNAL_ID = re.compile(rb'"external id"\s*:\s*"?(\d{1,20})', re.IGNORECASE)
_LARGEST = 2**63 - 1  # of an int64
_COPY = re.compile(r"mem_?cpy|memory_?copy|mem_?buffer_?copy|dma", re.IGNORECASE)
_SET = re.compile(r"mem_?set|buffer_?fill", re.IGNORECASE)
_LAUNCH = re.compile(r"launch", re.IGNORECASE)
_GRAPH_LAUNCH = re.compile(r"^(cu|cuda|hip|mu|musa)GraphLaunch")
_KERNEL, _MEMCPY, _MEMSET, _NO_LAUNCH = 0, 1, 2, -1
_MOSTLY = 0.5  # where most work of a track has a correlation id, the rest is not linked by order
_ALIKE = 0.8  # calls and work of one kind must be about as many to be linked by order


def by_external_id(trace: Trace, device: Ids32) -> Ids32:
    """The operator with the same `External id`, or its launch call, or -1.

    An operator with as many launch calls inside as it has device work of a kind launches them one
    by one, in order. `device` has event ids, ascending, shape (n,).

    Source: `args."External id"` in the trace-event output of libkineto.
    """
    wanted = recorded_ids(trace, device, _EXTERNAL_ID)
    if not (wanted >= 0).any():
        return np.full(len(device), -1, np.int32)
    operators = np.flatnonzero(trace.events.text("category").mask("cpu_op") & on_host(trace))
    place = places_among(recorded_ids(trace, operators, _EXTERNAL_ID), wanted)
    found = np.where(wanted >= 0, np.append(operators, -1)[place], -1)
    return _through_calls(trace, device, found.astype(np.int32))


def by_order(trace: Trace, device: Ids32, caller: Ids32) -> Ids32:
    """Link the unlinked work of each kind to the unused launch calls, in order of time.

    Only tracks that hardly carry correlation ids are linked this way, and only if there are about
    as many calls as pieces of work. No work starts before its call.

    Args:
        device: event ids of all device work, ascending, shape (n,).
        caller: the CPU event that launched each, -1 if unknown, shape (n,).

    Returns:
        int32, shape (n,): the call for work that was linked here, else -1.
    """
    events = trace.events
    result = np.full(len(device), -1, np.int32)
    candidates = _uncorrelated(trace, device) & (caller < 0)
    calls, call_kind = launch_calls(trace)
    unused = ~np.isin(calls, caller)
    kind = kind_of_work(events.text("category"), device)
    for code in (_KERNEL, _MEMCPY, _MEMSET):
        work = np.flatnonzero(candidates & (kind == code))
        free = calls[unused & (call_kind == code)]
        if min(len(work), len(free)) < _ALIKE * max(len(work), len(free), 1):
            continue
        result[work] = _in_order(events["start_ns"][device[work]], events["start_ns"][free], free)
    return result


def _in_order(begin: Ids, called: Ids, calls: Ids) -> Ids32:
    """Give each piece of work, in order of start, the next call that began before it."""
    result = np.full(len(begin), -1, np.int32)
    following = 0
    for row, time in enumerate(begin.tolist()):
        if following < len(calls) and called[following] <= time:
            result[row] = calls[following]
            following += 1
    return result


def is_graph_launch(name: str) -> bool:
    """Whether a call of this name starts a graph of device work.

    Example:
        >>> is_graph_launch("cudaGraphLaunch"), is_graph_launch("cudaLaunchKernel")
        (True, False)
    """
    return _GRAPH_LAUNCH.match(name) is not None


def recorded_ids(trace: Trace, rows: Ids32 | Ids, pattern: re.Pattern[bytes]) -> Ids:
    """The number that a pattern finds among the arguments of each event, -1 without one."""
    found = map(pattern.search, trace.arguments.texts(trace.events["source"][rows]))
    return np.array([int(match[1]) & _LARGEST if match else -1 for match in found], np.int64)


def _through_calls(trace: Trace, device: Ids32, operator: Ids32) -> Ids32:
    """Replace an operator by the launch calls inside it, if they are as many as its work."""
    events = trace.events
    calls, call_kind = launch_calls(trace)
    inside = innermost(events["parent"], events.text("category").mask("cpu_op"))[calls]
    kind = kind_of_work(events.text("category"), device)
    work_key = np.where(operator >= 0, operator.astype(np.int64) * 3 + kind, -1)
    call_key = np.where((inside >= 0) & (call_kind >= 0), inside.astype(np.int64) * 3 + call_kind, -2)
    keys, position = np.unique(np.concatenate([work_key, call_key]), return_inverse=True)
    of_work, of_call = position[: len(device)], position[len(device) :]
    same = np.bincount(of_work, minlength=len(keys)) == np.bincount(of_call, minlength=len(keys))
    work = np.flatnonzero(same[of_work] & (work_key >= 0))
    chosen = np.flatnonzero(same[of_call] & (call_key >= 0))
    start = events["start_ns"]
    work = work[np.lexsort((start[device[work]], of_work[work]))]
    chosen = chosen[np.lexsort((start[calls[chosen]], of_call[chosen]))]
    result = operator.copy()
    result[work] = calls[chosen]
    return result


def launch_calls(trace: Trace) -> tuple[Ids, Codes8]:
    """The outermost runtime calls that launch device work, and the kind of work."""
    events = trace.events
    runtime = events.text("category").mask("runtime")
    names = events.text("name")
    table = np.array([*map(_kind_of_call, names.values), _NO_LAUNCH], np.int8)
    kind = np.where(runtime, table[names.codes], _NO_LAUNCH)
    rows = np.flatnonzero(outermost(events["parent"], kind >= 0))
    return rows, kind[rows].astype(np.int8)


def _kind_of_call(name: str) -> int:
    if _COPY.search(name):
        return _MEMCPY
    if _SET.search(name):
        return _MEMSET
    return _KERNEL if _LAUNCH.search(name) else _NO_LAUNCH


def kind_of_work(category: Text, device: Ids32) -> Codes8:
    kind = np.full(len(device), _KERNEL, np.int8)
    kind[category.mask("memcpy")[device]] = _MEMCPY
    kind[category.mask("memset")[device]] = _MEMSET
    return kind


def _uncorrelated(trace: Trace, device: Ids32) -> Mask:
    """Device work on tracks that hardly carry correlation ids."""
    events = trace.events
    correlated = events["correlation"][device] >= 0
    tracks = len(trace["tracks"])
    whole = np.bincount(events["track"][device], minlength=tracks)
    known = np.bincount(events["track"][device[correlated]], minlength=tracks)
    bare = (known < _MOSTLY * whole)[events["track"][device]]
    return bare & ~correlated & events.text("category").mask(*DEVICE_WORK)[device]
