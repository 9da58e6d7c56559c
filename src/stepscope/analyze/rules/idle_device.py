"""`idle_device`: the device idles, and no other rule explains why."""

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import MOSTLY, is_whole_step, most_of_name
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import plain_name
from stepscope.base.arrays import Ids, Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.jax.calls import is_wait
from stepscope.facts.summary.verdict import SLOW_LAUNCHES, TAKE_TURNS
from stepscope.trace.intervals import Intervals

FALLBACK = True
REASONS = {
    "data": ("while a batch loads", "Load batches in worker processes, ahead of the step."),
    "synchronization": ("while the CPU awaits it", "Read results a step later."),
    "host": ("while the CPU launches nothing", "Shorten or move what the CPU does there."),
    "launch": ("although work was launched", "Find the stream or the event that it waits for."),
    "communication": ("except for communication", "Overlap communication with computation."),
}
OF_VERDICTS = {
    TAKE_TURNS: ("while another works", "Split batches into more micro-batches, so devices work at once."),
    SLOW_LAUNCHES: ("after launches", "Launch fewer, larger kernels."),
}
ON_THE_CPU = ("data", "synchronization", "host")  # what the CPU does then is the reason
_WAITS_FOR_DEVICE = re.compile(r"(block_until_ready|try_to_block)$")
FIND = "Find out what the CPU does there."
AWAITED = "The CPU awaits the device for most of it, and the file shows no work of the device then."
UNEXPLAINED = "Nothing recorded explains it: no call or range takes half of this time by itself."


def idle_device(context: RuleContext) -> Iterator[Finding]:
    """A device that idles without another finding that explains it: where, and next to what.

    A call or range is named if it takes half of this time or more.

    Silent below 5 % of the step, if the device is busy, and on a CPU.
    """
    cause = context.measures.summary.verdict.bound_by
    if not context.measures.has_device or context.context_trace or cause not in REASONS:
        return
    gaps = context.measures.idle(cause).minus(context.measures.spans(context.measures.first_use))
    idle = context.measures.recurring_ms(gaps)
    rows, inside = _around(context, gaps)
    culprit = _culprit(context, rows, inside, gaps) if cause in ON_THE_CPU else rows[:0]
    evidence = _evidence(context, rows, gaps, culprit)
    if context.measures.is_small(idle) or not len(evidence):
        return
    where = _name(context, culprit)
    sentence = context.measures.summary.verdict.sentence
    when, advice = next((of for text, of in OF_VERDICTS.items() if text in sentence), REASONS[cause])
    is_unknown = cause in ON_THE_CPU and cause != "data" and not where  # that a batch loads explains it
    advice = FIND if is_unknown else advice
    frames = len(context.search.find(category="python", on_device=False)) > 0
    yield context.finding(
        f"The device idles {context.measures.idle_share(cause):.0%} of the step {when}. That is "
        f"{rounded(context.measures.idle_ms(cause))} ms per step{where and f', mostly in {where}'}."
        f"{f' {_unexplained(context, gaps)}' if is_unknown else ''}",
        advice if frames else f"{advice} Record with `stepscope run --stack` to see the functions.",
        evidence,
        context.gains.bound(idle, "at most this idle time"),
        recurs=False,  # the gain counts what recurs
        limit="warning",  # no fix is known
    )


def _culprit(context: RuleContext, rows: Rows, inside: Ids, gaps: Intervals) -> Rows:
    """The events of one name that take half of the gaps or more, the longest first."""
    if not len(rows):
        return rows
    of_name, spent = most_of_name(context, rows, inside)
    if spent < MOSTLY * gaps.total():
        return rows[:0]
    return rows[of_name][np.argsort(-inside[of_name], kind="stable")]


def _name(context: RuleContext, culprit: Rows) -> str:
    """The name of some events, and the place of the first; empty for none."""
    if not len(culprit):
        return ""
    name, place = plain_name(context.search.name(int(culprit[0]))), context.place(int(culprit[0]))
    line = place.removeprefix(" in ")
    return line if line and name.endswith(line) else name if name in place else f"{name}{place}"


def _evidence(context: RuleContext, rows: Rows, gaps: Intervals, culprit: Rows) -> Rows:
    """The culprit, and other events that are in the gaps for most of their time."""
    if not len(rows):
        return _after(context, gaps)
    length = context.events["duration_ns"][rows]
    inside = gaps.within(*context.events.spans(rows)) >= MOSTLY * length
    return np.union1d(culprit, rows[inside]) if inside.any() else rows


def _after(context: RuleContext, gaps: Intervals) -> Rows:
    """The work with which the longest gap ends."""
    work = context.search.find(on_device=True)
    if not len(gaps):
        return work[:0]
    end = gaps.ends[(gaps.ends - gaps.starts).argmax()]
    return work[context.events["start_ns"][work] >= end][:1]


def _is_wait(context: RuleContext, rows: Rows) -> Mask:
    names = context.events.text("name")
    return names.where(lambda name: is_wait(name) or bool(_WAITS_FOR_DEVICE.search(name)))[rows]


def _unexplained(context: RuleContext, gaps: Intervals) -> str:
    rows = context.search.find(on_device=False)
    waits = context.measures.spans(rows[_is_wait(context, rows)])
    return AWAITED if waits.intersect(gaps).total() >= MOSTLY * gaps.total() else UNEXPLAINED


def _around(context: RuleContext, gaps: Intervals) -> tuple[Rows, Ids]:
    """What the threads that launch work do in the gaps, and its self time there, ns.

    A wait for the device explains no gap of its work.
    """
    events, search = context.events, context.search
    launching = np.unique(events["track"][search.caller[search.launched]])
    rows = search.find(on_device=False)
    rows = rows[np.isin(events["track"][rows], [search.loop_track, *launching.tolist()])]
    own = search.own_ns(rows, gaps.within(*events.spans(rows)))
    kept = (own > 0) & ~is_whole_step(context, rows) & ~_is_wait(context, rows)
    return rows[kept], own[kept]
