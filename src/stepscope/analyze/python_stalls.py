"""Python stalls that recur in every step: logging, saving, an environment."""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.event_search import LONGEST_NS
from stepscope.analyze.finding import Finding, Place, line_words
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import MostSampled, most_sampled, plain_name
from stepscope.base.arrays import Ids, Mask, Rows, Times
from stepscope.facts.annotate.range_names import MODULE_RANGE, is_step
from stepscope.facts.annotate.steps.step_table import step_marks
from stepscope.facts.summary.facts import StagePlace
from stepscope.facts.summary.report_facts import samples_of
from stepscope.trace.intervals import Intervals, index_pairs
from stepscope.trace.recorded_steps import active_share, blocked_share, held_up_share
from stepscope.trace.row_order import last_begun

# What each class of torch.optim does in Python takes microseconds. LBFGS has a Python loop.
_UPDATES = (
    r"^Optimizer\.step#(Adadelta|Adafactor|Adagrad|Adam|Adamax|AdamW|ASGD|Muon|NAdam|RAdam|RMSprop"
    r"|Rprop|SGD|SparseAdam)\.step$"
)
LONG_NS = 1_000_000  # of all gaps at one place; Python between two operators takes microseconds
MAIN_SHARE = 0.1  # of the time of the name with most; others only surround it
MOSTLY = 0.5  # of the time: what takes less does not explain it
WHOLE = 0.9  # of the step: a range that takes as much shows no place in it
LOOP = "the training loop"
WAITING = (
    "Find what it waits for: another process, a disk, the network, a lock or a sleep. Prefetch: let that "
    "go on in another thread, process or task while the last result is used."
)
HELD_UP = (
    "Other threads of the process compute meanwhile{}: Python runs one at a time (GIL). Move their work to "
    "another process, or let them wait for events."
)
_FEWEST_SAMPLES = 3  # as of the places in a report
_NONE = -1
_EVER = 2**62  # ns: later than every event


class PythonStalls(NamedTuple):
    """Python stalls at the same places of every step."""

    spans: Intervals  # their intervals
    longest_ms: float  # the longest
    before: int  # the event of its step before the longest, or -1
    after: int  # the one after it, or -1


class StalledRanges(NamedTuple):
    """What the training loop's thread is in during some gaps."""

    gaps: Intervals
    rows: Rows  # the ranges and frames with much of the time; where there are none, the calls before the gaps
    spent: Ids  # the time of the gaps in each, ns
    outside: int  # the time in no range, ns; steps of JAX are no ranges


def python_of_the_loop(context: RuleContext) -> Intervals:
    """When the training loop runs Python and nothing else, but no update and no checkpoint.

    Between two operators an optimizer of PyTorch mostly frees memory. What a closure runs in the
    optimizer's range is the loop's all the same. Checkpoints have a rule of their own.
    """
    ranges = context.measures.spans(context.search.find(_UPDATES, on_device=False))
    update = ranges.intersect(context.measures.stage_spans("optimizer"))
    return context.measures.python_time().minus(update.union(context.measures.stage_spans("checkpointing")))


def find_python_stalls(context: RuleContext, gaps: Intervals) -> PythonStalls | None:
    """The gaps longer than between the operators of a model that recur between the same events in
    every step; None if there are none, and in a tree, which has no order.

    A place counts if every step spends 1 ms there, so a process that was preempted once does not.
    Gaps in steps without any recorded event do not count.
    """
    start, end, step = _by_step(context, gaps)
    if not len(start) or context.context_trace:
        return None
    before, after = _neighbors(context, start, end, step)
    names = np.append(context.events["name"].astype(np.int64), _NONE)
    pairs = np.stack([names[before], names[after]], axis=1)
    place = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
    count = len(context.steps)
    spent = np.bincount(place * count + step, end - start, (place.max() + 1) * count)
    kept = (spent.reshape(-1, count).min(axis=1)[place] >= LONG_NS) & ((before >= 0) | (after >= 0))
    if not kept.any():
        return None
    longest = int(np.argmax(np.where(kept, end - start, 0)))
    return PythonStalls(
        Intervals(start[kept], end[kept]),
        float(end[longest] - start[longest]) / 1e6,
        int(before[longest]),
        int(after[longest]),
    )


def share(context: RuleContext, gaps: Intervals) -> float:
    start, end = context.steps["start_ns"], context.steps["end_ns"]
    return float(np.median(gaps.within(start, end) / np.maximum(end - start, 1)))


def blocked_of_loop(context: RuleContext, part: float) -> float:
    """About the share of the step in which the training loop waits for something, if for most of `part`."""
    loads = context.measures.stage_spans("data_loading").minus(context.measures.python_time())
    elsewhere = context.measures.wait_ms() / context.measures.steady_ms + share(context, loads)
    return blocked_share(part, active_share(context.trace.metadata.capture), elsewhere)


def advice_if_blocked(context: RuleContext, blocked: float) -> str:
    """What to do where the training loop waits for this share of the step."""
    capture = context.trace.metadata.capture
    if held_up_share(capture) < MOSTLY * blocked:
        return WAITING
    return HELD_UP.format(f" in {' and '.join(others[:3])}" if (others := capture.get("others")) else "")


def _by_step(context: RuleContext, gaps: Intervals) -> tuple[Times, Times, Rows]:
    """Long gaps, split at step boundaries: start, end, and number of the step."""
    begin, finish = context.steps["start_ns"], context.steps["end_ns"]
    first = last_begun(begin, gaps.starts)
    last = np.searchsorted(begin, gaps.ends, side="left") - 1
    gap, step = index_pairs(first, last + 1)
    start = np.maximum(gaps.starts[gap], begin[step])
    end = np.minimum(gaps.ends[gap], finish[step])
    long = end - start >= LONGEST_NS
    return start[long], end[long], step[long]


def _neighbors(context: RuleContext, start: Times, end: Times, step: Rows) -> tuple[Rows, Rows]:
    """Events of the training loop's thread before and after each gap, in the same step."""
    events, steps = context.events, context.steps
    rows = context.search.find(category=("cpu_op", "annotation", "runtime", "communication"))
    rows = rows[(events["track"][rows] == context.search.loop_track) & ~step_marks(context.trace)[rows]]
    begin, length = events["start_ns"][rows], events["duration_ns"][rows]
    finish = begin + length
    by_end, by_start = np.lexsort((length, finish)), np.lexsort((-length, begin))
    place = np.searchsorted(finish[by_end], start, side="right")
    near = np.append(-_EVER, finish[by_end])[place] > steps["start_ns"][step]
    before = np.where(near, np.append(_NONE, rows[by_end])[place], _NONE)
    place = np.searchsorted(begin[by_start], end)
    near = np.append(begin[by_start], _EVER)[place] < steps["end_ns"][step]
    return before, np.where(near, np.append(rows[by_start], _NONE)[place], _NONE)


def name_of_stall(context: RuleContext, stalled: StalledRanges) -> str:
    """The range or frame with most of the time, and the user's function that called it.
    If that is the training loop itself, the function or line that most samples in the gaps saw.
    """
    name = _named_by_ranges(context, stalled)
    if name != LOOP:
        return name
    place = sampled_place(context, stalled.gaps)
    return line_words(*place) if place else LOOP


def at_sampled_line(context: RuleContext, finding: Finding, stalled: StalledRanges) -> Finding:
    """The finding on a stall, with that line as its evidence where the stall is named by it."""
    place = sampled_place(context, stalled.gaps)
    return finding.at_line(*place) if place and _named_by_ranges(context, stalled) == LOOP else finding


def sampled_place(context: RuleContext, gaps: Intervals) -> MostSampled | None:
    """The line that most samples of the training loop saw in some gaps; None where none saw half of them."""
    samples = samples_of(context.trace)
    samples = samples.take(samples["track"] == context.search.loop_track)
    return most_sampled(samples, gaps, _FEWEST_SAMPLES, MOSTLY)


def place_of_stall(context: RuleContext, stalled: StalledRanges, name: str) -> str:
    """Where the time of a stall is, in words: mostly in this place, or a share of it.

    Example: `Mostly in train.py:12 in log`, `40% of it in train.py:12 in log`.
    """
    most = max(most_of_name(context, stalled.rows, stalled.spent)[1], stalled.outside)
    spent = most / max(stalled.gaps.total(), 1)
    return f"{spent:.0%} of it in {name}" if spent < MOSTLY else f"Mostly in {name}"


def _named_by_ranges(context: RuleContext, stalled: StalledRanges) -> str:
    worst, spent = most_of_name(context, stalled.rows, stalled.spent)
    row = int(stalled.rows[worst][0])
    name = context.search.name(row)
    if spent <= stalled.outside or plain_name(name) == LOOP or is_whole_step(context, stalled.rows[worst])[0]:
        return LOOP
    caller = context.place(row).removeprefix(" in ")
    is_frame = context.events.text("category")[row] == "python"
    if is_frame and caller and not caller.endswith(name.rpartition(" ")[2]):
        return f"{name}, called by {caller}"
    place = sampled_place(context, stalled.gaps) if name.startswith(MODULE_RANGE) else None
    return f"{plain_name(name)}, {line_words(*place)}" if place else plain_name(name)


def most_of_name(context: RuleContext, rows: Rows, spent: Ids) -> tuple[Mask, int]:
    """Those of some events, at least one, whose plain name takes most time; and this time, ns."""
    codes, code = np.unique(context.events["name"][rows], return_inverse=True)
    values = context.events.text("name").values
    _, plain = np.unique([plain_name(values[code]) for code in codes.tolist()], return_inverse=True)
    total = np.bincount(plain[code], spent)
    return plain[code] == total.argmax(), int(total.max())


def is_whole_step(context: RuleContext, rows: Rows) -> Mask:
    """Ranges that show no place in a step: its own, and those of most of it, launches included."""
    events, search = context.events, context.search
    long = events["duration_ns"][rows] >= WHOLE * 1e6 * context.measures.steady_ms
    long &= events.text("category").mask("annotation", "python")[rows]
    around = search.holding(search.caller[search.launched])[rows]
    return (long & around) | events.text("name").where(is_step)[rows]


def has_names(context: RuleContext, name: str) -> bool:
    """Whether a stall has a name, or the recording has frames or samples that would have given it one."""
    frames = context.search.find(category="python", on_device=False)
    return name != LOOP or len(frames) + len(samples_of(context.trace)) > 0


def sampled_line(context: RuleContext, spent_ms: float, stage: str = "other") -> str:
    """The line in a stage that samples of a capture saw most, or a range has measured, such as
    `train.py:12 in log`; empty where none is known, or has less than half of this time."""
    places = context.measures.summary.places
    known = [place for place in places if place.stage == stage]
    most = max(known, key=lambda place: place.ms, default=None)
    if most is None or most.ms < spent_ms / 2:
        return ""
    return line_words(most.file, most.line, most.function, most.called)


def place_at(one: StagePlace) -> Place:
    """The evidence of a function that a capture marked or sampled, at its most frequent line."""
    line = one.file, one.line, one.function
    return Place(one.function, one.stage, "", *line, one.calls or 1.0, one.ms, called=one.called)


def stalled_ranges(context: RuleContext, gaps: Intervals) -> StalledRanges:
    """Ranges and frames of the training loop's thread, and the time of the gaps in each."""
    events = context.events
    rows = context.search.find(category=("annotation", "python", "cpu_op"), on_device=False)
    rows = rows[(events["track"][rows] == context.search.loop_track) & context.search.is_range(rows)]
    marks = events.text("name").where(is_step)[rows]
    rows = rows[marks | ~is_whole_step(context, rows)]  # a step that the user marks shows no place in it
    inside = gaps.within(*events.spans(rows))
    own = context.search.own_ns(rows, inside)
    names = events["name"][rows]
    spent = np.bincount(names, own)
    outside = gaps.total() - int(own.sum())
    main = (own > 0) & (spent[names] >= MAIN_SHARE * max(spent.max(initial=1), outside))
    if main.any():
        return StalledRanges(gaps, rows[main], own[main], outside)
    calls = _calls_before(context, gaps)
    return StalledRanges(gaps, calls, np.zeros(len(calls), np.int64), outside)


def _calls_before(context: RuleContext, gaps: Intervals) -> Rows:
    before, after = _neighbors(context, *_by_step(context, gaps))
    calls: Rows = np.unique(np.where(before >= 0, before, after))
    return calls[calls >= 0]
