"""Where each training step begins and ends."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Ids32, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.jax.calls import (
    BEFORE_RECORDING,
    UNKNOWN,
    call_starts,
    calls_of_host_work,
    is_compiled_call,
    iterations_by_calls,
)
from stepscope.facts.annotate.jax.device_runs import call_times, calls_of_device_work
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.links.launches import (
    at_launch,
    device_work,
    launch_of,
    launched_before_recording,
    marked_on_devices,
    on_host,
)
from stepscope.facts.annotate.range_names import is_recorded_step, is_step, step_number
from stepscope.facts.annotate.steps.main_track import main_track, updates
from stepscope.facts.annotate.steps.missing_work import (
    complete_steps,
    launch_calls,
    warn_clocks,
    warn_missing,
    with_partial_graphs,
)
from stepscope.facts.annotate.steps.ranges import (
    CHOSEN,
    beside_training,
    chosen_ranges,
    cut_to_ranges,
    is_of_other_loop,
    ranges_of_updates,
    step_ranges,
    steps_of_ranges,
    until_evaluation,
)
from stepscope.facts.annotate.steps.step_table import ITERATION, covered_share, number_list, warn_little
from stepscope.facts.annotate.steps.turns import optimizers_in_turn
from stepscope.facts.annotate.steps.windows import end_of_earlier_work, step_windows
from stepscope.trace.missing_records import TIME_LEFT_OUT, WORK_MISSING
from stepscope.trace.nesting import outermost
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.row_order import count_within, ends_run, last_begun, running_span
from stepscope.trace.schema import DEVICE_WORK, STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

# What counts as steps. The shares are judged, not measured; docs/design/annotation.md, "Steps".
_REGULAR = 0.9  # of the top-level events recur: a loop also prints, evaluates or saves
_LEAST_EVENTS = 8  # top-level events, of which fewer show no pattern
_SAMPLE = 1000  # events, which show what part recurs with a standard error of 0.01
_SAMPLE_ERROR = 0.05  # five times that
_MOST_STEPS = 10_000  # each takes 0.2 ms; recordings have a few, and `watch` is for the whole run
_CUT_OFF = 0.02  # of the median length: shorter ranges are cut off by the end of the recording
_ALIKE = 0.9  # of the records of another step: the first one may lack a few
_NOTABLE = 0.1  # of the compiled work: as much outside of all steps is worth a warning
_LITTLE = 0.25  # steps that hold less of the work do not stand for the trace
_UNLIKE = 0.5  # a last iteration that differs by more is cut off, or includes work after the loop
_OVERLAP = 0.1  # of a mark: one profiler's marks overlap by what its clock is wrong
_UNLIKE_WINDOW = 0.1  # the same for its window, which ends with its work
_FEW = 3  # repeats of which none is dropped: two steps are little enough
_NO_CATEGORY = (
    "no event has the category or the name of an operator, a call or a kernel, so the report shows "
    "none; `stepscope view` shows all events"
)
_NO_REQUEST = 10  # iterations: to schedule the next one takes a server less than one; chosen
_NEVER = np.iinfo(np.int64).max


def find_steps(trace: Trace) -> Trace:
    """Fill the table `steps`, and the step of every event (docs/design/annotation.md, "Steps").

    The best evidence counts; the whole trace is one step if the steps found hold little of the work. Those
    whose launches lack work in the file are left out, unless all do, and those that a file cuts off.

    Source: HOTLINE section 4.2, widened.
    """
    chosen = _by_choice(trace)
    found = chosen or _by_marks(trace) or _by_pattern(trace) or _whole(trace)
    starts, ends, evidence = found.starts, found.ends, found.evidence
    called = calls_of_host_work(trace)
    # The last range of a profiler is often cut off; a capture has complete steps only.
    is_complete = evidence == ITERATION or bool(trace.metadata.capture.get("recorded_steps"))
    whole = ~_cut_off(trace, starts, ends, evidence) | is_complete
    cut = (ends > trace.events["start_ns"][trace.events["source"].argmax()]) & (evidence != "whole_trace")
    is_cut = trace["warnings"].text("code").mask("truncated_event", "truncated_file").any()
    has_work = trace.events.text("category").mask("runtime", *DEVICE_WORK).any()  # which Kineto writes last
    if is_cut and ((trace.metadata.devices and not has_work) or not (whole & ~cut).any()):
        trace = trace.with_warnings([(WORK_MISSING, "the file is cut off before the end of all work", 1)])
    elif is_cut:
        whole &= ~cut
    step = _step_of_events(trace, called, starts[whole], ends[whole])
    share = 1.0 if chosen or trace.metadata.capture else covered_share(trace, step)
    later = (at_launch(trace, trace.events["start_ns"]) >= ends[-1]) & bool(found.note)
    if share < _LITTLE and covered_share(trace, step, later | beside_training(trace)) < _LITTLE:
        return _as_one_step(trace, called, evidence, (ends - starts)[whole], share)
    if not whole.all():
        message = "an incomplete step is excluded"
        trace = trace.with_warnings([("cut_off_step", message, int((~whole).sum()))])
    trace = trace.with_warnings([(TIME_LEFT_OUT, found.note, 1)] if found.note else [])
    if (more := int(whole.sum()) - _MOST_STEPS) > 0:
        trace = trace.with_warnings([("many_steps", f"only the first {_MOST_STEPS:,} steps are read", more)])
        step = np.where(step < _MOST_STEPS, step, -1)
    kept = [column[whole][:_MOST_STEPS] for column in (_ascending(found.numbers), starts, ends)]
    trace = _with_steps(trace, called, step, (kept[0], kept[1], kept[2]), evidence)
    marked = evidence in ("profiler_step", "range", ITERATION)
    return trace if marked else _warn_inferred(trace, evidence, found.doubt)


def _cut_off(trace: Trace, starts: Times, ends: Times, evidence: str) -> Mask:
    """Ranges without any record where most have many, and short ones at the end of a sequence.

    The recording ended in these, if they launched nothing; a wait for the device is no such record.
    Ranges in which a program was put into a queue are short too, and have no record where a file has
    only those of the device. Of steps of which only the end is marked, the first may have begun before
    the recording: it is cut off if it has fewer records than any other, by more than those vary.
    """
    work = trace.events.text("category").mask("cpu_op", "runtime", *DEVICE_WORK)
    acts = work & on_host(trace) & ~trace.events.text("name").where(lambda name: "Synchronize" in name)
    acts = acts if acts.any() and not marked_on_devices(trace) else work
    begin = trace.events["start_ns"][acts]
    records = count_within(begin, starts, ends)
    short = ends - starts < _CUT_OFF * np.median(ends - starts)
    short[:-1] &= starts[1:] > 2 * ends[:-1] - starts[:-1]
    cut = short | ((records == 0) & (np.median(records) >= _LEAST_EVENTS))
    if cut.any():
        cut &= count_within(np.sort(call_times(trace)), starts, ends) == 0
    if evidence == "optimizer" and len(records) > 1:
        least, most = records[1:].min(), records[1:].max()
        cut[0] |= records[0] < min(2 * least - most, _ALIKE * least)
    has_few = len(records) > _FEW and records[-1] < _UNLIKE * records[:-1].min()
    if has_few and evidence == "profiler_step" and not trace.metadata.capture:
        last = trace.events["name"][acts][np.searchsorted(begin, ends) - 1]
        cut[-1] |= last[-1] not in last[:-1]  # the profiler was stopped before what ends the others
    return cut & ~cut.all()


def _ascending(numbers: Times) -> Times:
    """The numbers of steps in order of time; counted from the first where marks repeat or go back.

    Example:
        >>> _ascending(np.array([7, 8, 10])).tolist(), _ascending(np.array([2, 2, 1])).tolist()
        ([7, 8, 10], [2, 3, 4])
    """
    return numbers if (np.diff(numbers) > 0).all() else np.arange(numbers[0], numbers[0] + len(numbers))


def _as_one_step(trace: Trace, called: Ids32, evidence: str, lengths: Times, share: float) -> Trace:
    """The whole trace as one step, of all threads, as those found hold little of its work."""
    if evidence == "whole_trace":
        trace = _warn_inferred(trace, evidence)
    else:
        trace = warn_little(trace, lengths, share)
    numbers, starts, ends, evidence, *_ = _whole(trace, any_track=True)
    step = _step_of_events(trace, called, starts, ends)
    return _with_steps(trace, called, step, (numbers, starts, ends), evidence)


def _with_steps(
    trace: Trace, called: Ids32, step: Rows, steps: tuple[Times, Times, Times], evidence: str
) -> Trace:
    numbers, starts, ends = steps
    queued = launched_before_recording(trace)
    if evidence == "whole_trace":
        step, queued = np.where(queued, 0, step), np.zeros_like(queued)  # part of the whole
    calls = with_partial_graphs(trace, launch_calls(trace, step), step)
    complete = complete_steps(trace, calls, step, len(numbers))
    kept = complete if complete.any() else ~complete
    of_kept = (step >= 0) & kept[step]
    trace = trace.with_events(step=np.where(of_kept, numbers[step], -1))
    operations = trace.events.text("category").mask("cpu_op", "communication")
    called = np.where(operations, called, UNKNOWN)  # what runs them may end when it is scheduled
    work = (device_work(trace) | (called >= 0)) & (step >= 0)
    last = np.full(len(numbers), -1, np.int64)  # when the last work of each step ends
    np.maximum.at(last, step[work], trace.events.spans(work)[1])
    # Marks on a device begin where its own work does, however early that was called for.
    before = -1 if marked_on_devices(trace) else end_of_earlier_work(trace, called, starts, queued)
    columns: dict[str, Any] = {
        "step": numbers,
        "rank": np.full(len(numbers), trace.metadata.ranks[0]),
        "start_ns": starts,
        "end_ns": ends,
        "device_end_ns": last,
        "evidence": Text.constant(evidence, len(numbers)),
    }
    table = _windows(Table(STEPS, columns), before, kept).take(kept)
    trace = warn_missing(trace.with_table(table), calls, step, complete)
    return _warn_work_outside(_warn_device_outside(warn_clocks(trace), step))


class Found(NamedTuple):
    """Steps, and the evidence for them."""

    numbers: Times
    starts: Times
    ends: Times
    evidence: str
    doubt: str = ""  # why steps may be longer than these
    note: str = ""  # what time they leave out


def _left_out(what: str, until: Times, starts: Times, ends: Times) -> str:
    spent, whole = int((ends - until).sum()), max(int(ends[-1] - starts[0]), 1)
    share = f"{milliseconds(spent)}, {spent / whole:.0%} of the recorded time"
    return f"{what} takes {share}; it is in no step" * (spent > 0)


def _by_choice(trace: Trace) -> Found | None:
    """The marked steps in the ranges that the user asks for; else each of these is a step."""
    ranges = chosen_ranges(trace)
    if not len(ranges):
        return None
    marked = _by_marks(trace.with_metadata(properties={**trace.metadata.properties, CHOSEN: ""}))
    if marked and len((inside := cut_to_ranges(trace, ranges, *marked[:3]))[0]):
        return Found(*inside, marked.evidence, marked.doubt)
    return Found(*steps_of_ranges(trace, ranges, is_part=True), "range")


def _by_marks(trace: Trace) -> Found | None:
    ways = (_by_profiler, _by_optimizer, _by_iterations, _by_calls)
    if found := next((found for way in ways if (found := way(trace))), None):
        return found
    rows = step_ranges(trace)
    return Found(*steps_of_ranges(trace, rows), "range") if len(rows) else None


def _by_profiler(trace: Trace) -> Found | None:
    names = trace.events.text("name")
    rows = _named(trace, is_recorded_step)
    others = rows[:0]
    if not len(rows):
        marks = _named(trace, is_step)
        of_others = names.take(marks).where(lambda name: is_of_other_loop(name.partition("#")[0]))
        others = marks[of_others & ~of_others.all()]
        rows = _of_one_profiler(trace, np.setdiff1d(marks, others))
    if not len(rows):
        return None
    numbers = np.array([step_number(names[row] or "") for row in rows])
    start = call_starts(trace, rows)
    end = start + trace.events["duration_ns"][rows]
    # The profiler ends a step's range just before it begins the next; the step lasts until then, or
    # until another loop runs, as one that evaluates.
    follows = np.append(np.diff(numbers) == 1, False)
    stops = np.append(trace.events["start_ns"][others], _NEVER)
    stop = np.maximum(stops[np.searchsorted(stops, start)], end)
    end = np.minimum(np.where(follows, np.append(start[1:], 0), end), stop)
    # The last marked step may be cut off by the end of profiling.
    recorded = trace.metadata.capture.get("steps_recorded") or numbers
    until, what = until_evaluation(trace, rows, start, end)
    kept = np.isin(numbers, recorded) & (until > start)
    note = _left_out(what, until, start, end)
    return Found(numbers[kept], start[kept], until[kept], "profiler_step", note=note) if kept.any() else None


def _of_one_profiler(trace: Trace, marks: Ids) -> Ids:
    """Marks of steps, without those of a second profiler, which begin within steps of the first."""
    kept: list[int] = []
    until, (starts, ends) = -1, trace.events.spans(marks)
    for mark, start, end in zip(marks.tolist(), starts.tolist(), ends.tolist(), strict=True):
        if start >= until - _OVERLAP * (end - start):
            kept.append(mark)
            until = end
    return np.array(kept, np.int64)


def _by_optimizer(trace: Trace) -> Found | None:
    events, rows = trace.events, _updates(trace)
    if not len(rows):
        return None
    # With several optimizers, the one that steps least often ends the step; if tied, the last.
    optimizer, doubt = optimizers_in_turn(trace, rows)
    counts = Counter(optimizer.tolist())
    anchor = min(reversed(optimizer.tolist()), key=lambda number: counts[number])
    last = rows[optimizer == anchor]
    if len(ranges := ranges_of_updates(trace, last)):
        return Found(*steps_of_ranges(trace, ranges), "range")
    ends = events.spans(last)[1]
    begin = events["start_ns"][events["track"] == events["track"][last[0]]].min()
    return Found(np.arange(len(ends)), np.append(begin, ends[:-1]), ends, "optimizer", doubt)


def _updates(trace: Trace) -> Rows:
    """Updates by optimizers on the thread of the loop; of those with no pass between them the last."""
    events = trace.events
    on_loop = events["track"] == main_track(trace)
    rows = np.flatnonzero(outermost(events["parent"], updates(trace)) & on_loop)
    passes = is_backward(events)
    passed = np.searchsorted(events["start_ns"][passes], events["start_ns"][rows])
    return rows[ends_run(passed) | ends_run(events["parent"][rows]) | (not passes.any())]


def _by_iterations(trace: Trace) -> Found | None:
    """From the start of one iteration of a server to the start of the next, without long pauses."""
    iterations = trace["iterations"]
    if not len(iterations):
        return None
    starts, done = (iterations[name].astype(np.int64) for name in ("start_ns", "end_ns"))
    ends, call = np.append(starts[1:], done[-1:]), running_span(starts, done, call_times(trace))
    np.maximum.at(done, call, trace.events.spans(trace["launches"]["device_event"])[1])
    until = np.where(ends - done > _NO_REQUEST * np.median(done - starts), done, ends)
    note = _left_out("waiting for requests, or for what the file does not show,", until, starts, ends)
    return Found(np.arange(len(starts)), starts, until, ITERATION, note=note)


def _by_calls(trace: Trace) -> Found | None:
    """From one call of the training function to the next."""
    track = main_track(trace)
    iterations = iterations_by_calls(trace, track)
    if iterations is None or len(iterations.starts) < 2:
        return None
    starts, events = iterations.starts, trace.events
    here = events["track"] == track
    ends = np.append(starts[1:], _end_of(trace, here, starts[-1]))
    count = len(ends) if iterations.last_is_whole else len(ends) - 1
    if count == len(ends) and not _last_is_like(ends - starts):
        calls = here & events.text("name").where(is_compiled_call) & (events["start_ns"] >= starts[-1])
        ends[-1] = events.spans(calls)[1].max()  # they have returned
        count -= not _last_is_like(_window_lengths(trace, starts, ends), _UNLIKE_WINDOW)
    return Found(np.arange(count), starts[:count], ends[:count], "compiled_call")


def _window_lengths(trace: Trace, starts: Times, ends: Times) -> Times:
    """From the end of all work of each step to that of the next, ns; none without device work."""
    step = last_begun(starts, call_times(trace))
    done = ends.copy()
    np.maximum.at(done, step[step >= 0], trace.events.spans(trace["launches"]["device_event"])[1][step >= 0])
    return np.diff(done) if (step >= 0).any() else np.zeros(0, np.int64)


def _by_pattern(trace: Trace) -> Found | None:
    """Repeats of the sequence of top-level events on the main track."""
    events = trace.events
    top = np.flatnonzero((events["track"] == main_track(trace)) & (events["parent"] < 0))
    codes = events["name"][top]
    is_range = events.text("category").mask("annotation")[top].all()
    period = 1 if is_range and len(top) >= _FEW and (codes == codes[0]).all() else _period(codes)
    if period is None:
        return None
    starts = events["start_ns"][top[::period]]
    whole = len(codes) // period
    ends = np.append(starts[1:whole], events.spans(top)[1][: whole * period].max())
    # Nothing shows for how long the loop pauses after the last repeat. Work without a launch could
    # not be left out with it: it belongs to the last step that began.
    kept = (
        whole < _FEW
        or _last_is_like(ends - starts[:whole])
        or bool((device_work(trace) & (launch_of(trace) < 0)).any())
    )
    count = whole if kept else whole - 1
    return Found(np.arange(count), starts[:count], ends[:count], "pattern")


def _last_is_like(lengths: Times, unlike: float = _UNLIKE) -> bool:
    return len(lengths) > 1 and bool(abs(lengths[-1] - (usual := np.median(lengths[:-1]))) < unlike * usual)


def _period(codes: IntArray) -> int | None:
    """The shortest period with which nearly all of the sequence repeats, at least twice."""
    if len(codes) < _LEAST_EVENTS:
        return None
    if (codes[1:] == codes[:-1]).mean() >= _REGULAR:
        return None  # one operator again and again: a benchmark
    first = np.flatnonzero(codes == codes[0])
    places = np.random.default_rng(0).random(_SAMPLE)
    for period in first[first >= 2].tolist():
        if 2 * period > len(codes):
            return None
        some = (places * (len(codes) - period)).astype(np.intp)
        if (codes[some + period] == codes[some]).mean() < _REGULAR - _SAMPLE_ERROR:
            continue  # to compare all takes the square of the events' number
        if (codes[period:] == codes[:-period]).mean() >= _REGULAR:
            return int(period)
    return None


def _whole(trace: Trace, any_track: bool = False) -> Found:
    """The whole trace as one step: what the training loop's thread does, or all threads do."""
    events = trace.events
    rows = (events["track"] == main_track(trace)) | (on_host(trace) & any_track)
    start = events["start_ns"][rows].min(keepdims=True)
    return Found(np.zeros(1, np.int64), start, np.array([_end_of(trace, rows, start[0])]), "whole_trace")


def _end_of(trace: Trace, rows: Mask, since: int) -> int:
    """When the last of some events ends, or until the profiler, which is no part of a step, stops."""
    events = trace.events
    stops = events.text("name").where(lambda name: name.endswith(": stop_trace"))
    stops &= rows & (events["start_ns"] > since)
    return int(min([events.spans(rows)[1].max(), *events["start_ns"][stops][-1:]]))


def _named(trace: Trace, test: Callable[[str], bool]) -> Ids:
    """Events of such names on the training loop's thread, else on the first thread that has some."""
    rows = np.flatnonzero(trace.events.text("name").where(test))
    track = trace.events["track"][rows]
    here = track == main_track(trace)
    return rows[here if here.any() else track == track[:1]]


def _step_of_events(trace: Trace, called: Ids32, starts: Times, ends: Times) -> Rows:
    """Index of the step of each event, or -1; `called` is the call of compiled work on the host."""
    begin, caller = trace.events["start_ns"], launch_of(trace)
    step = running_span(starts, ends, begin)
    asked = calls_of_device_work(trace)
    late = np.flatnonzero((asked != UNKNOWN) & (caller >= 0))  # by threads that launch when it is needed
    step[caller[late]] = np.where(asked >= 0, step[asked], -1)[late]
    if (called != UNKNOWN).any():
        step = np.where(called >= 0, step[called], step)
        step[called == BEFORE_RECORDING] = -1
    if marked_on_devices(trace):
        return step
    launched = np.where(caller >= 0, step[caller], -1)
    # Of what has no known launch only work has a step: a range on a device may span several.
    alone = np.flatnonzero(device_work(trace) & (caller < 0))
    # Work after the end of the last step of a sequence is of that one.
    launched[alone] = running_span(starts, np.append(ends[:-1], _NEVER)[: len(ends)], begin[alone])
    launched[launched_before_recording(trace)] = -1
    return np.where(on_host(trace), step, launched)


def _windows(steps: Table, before: int, complete: Mask) -> Table:
    """The steps with their windows; work that was called for earlier ends at `before`."""
    start, end = step_windows(steps, complete)
    if len(steps) and before < end[0]:
        # The first step's work waits for that of the step before it.
        start[0] = max(start[0], before)
    return steps.with_columns(window_start_ns=start, window_end_ns=end)


def _warn_work_outside(trace: Trace) -> Trace:
    """Warn if threads run much compiled work after the step that called it has ended.

    JAX returns before its work is done. On a device the launch identifies the step; on a CPU
    nothing does. A capture waits for the work (docs/guide/capture_jax.md).
    """
    events = trace.events
    if events.text("name").where(is_recorded_step).any():
        return trace
    compiled = on_host(trace) & (events["scope"] >= 0)
    outside = events["self_ns"][compiled & (events["step"] < 0)].sum()
    whole = events["self_ns"][compiled].sum()
    if outside <= _NOTABLE * whole:
        return trace
    message = (
        f"{milliseconds(outside)} of {milliseconds(whole)} of compiled work on the CPU runs "
        "outside all steps; wait for it in each step (`jax.block_until_ready`)"
    )
    return trace.with_warnings([("work_outside_steps", message, 1)])


def _warn_device_outside(trace: Trace, step: Rows) -> Trace:
    """Warn of devices that work in no step, as where each has steps of its own, and of work between steps."""
    events, starts = trace.events, trace["steps"]["start_ns"]
    counts = ((step >= 0) | ~beside_training(trace)) & ~launched_before_recording(trace)
    work = np.flatnonzero(device_work(trace) & counts)
    numbers, device = np.unique(trace["tracks"]["device"][events["track"][work]], return_inverse=True)
    spent = np.bincount(device, events["duration_ns"][work])
    inside = np.bincount(device, events["duration_ns"][work] * (step[work] >= 0))
    begun = np.searchsorted(starts, at_launch(trace, events["start_ns"])[work], side="right")
    between = (step[work] < 0) & (begun > 0) & (begun < len(starts))
    left, where = events["duration_ns"][work[between]].sum(), "the work between steps"
    outside = np.flatnonzero((spent > _NOTABLE * spent.sum()) & (inside < _NOTABLE * spent))
    if len(outside):
        names = number_list(numbers[outside].tolist())
        left, where = spent[outside].sum(), f"the work of device{'s' * (len(outside) > 1)} {names}"
    if not inside.any() or left <= _NOTABLE * spent.sum():
        return trace
    message = f"{milliseconds(left)} of {milliseconds(spent.sum())} of device work is in no step: {where}"
    return trace.with_warnings([("device_outside_steps", message, 1)])


def _warn_inferred(trace: Trace, evidence: str, doubt: str = "") -> Trace:
    repeated = "kernels" if device_work(trace).all() else "operators"
    message = {
        "optimizer": doubt,
        "compiled_call": "the file marks no steps; a step lasts from one call of the jitted "
        "training function to the next",
        "pattern": f"the file marks no steps; steps are repeats of a pattern of {repeated}",
        "whole_trace": "the file marks no steps and has no pattern; the whole trace is one step",
    }[evidence]
    if trace.events.text("category").mask("other").all():
        message = f"{message}; {_NO_CATEGORY}"
    return trace.with_warnings([("steps_inferred", message, 1)] if message else [])
