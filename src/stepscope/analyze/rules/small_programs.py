"""`small_programs`: operations of JAX that run one by one, outside of a compiled function."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.python_stalls import LONG_NS
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.jax.calls import CALL, called_function, is_wait
from stepscope.trace.intervals import Intervals

CAUSE = "launches"
EXPLAINS = ("host", "launch")
MANY = 20  # calls per step
SMALL_NS = 200_000  # of half of the calls of a function
MOST_NAMES = 3  # that the sentence names
NOTE = (
    "at most the time of these calls, with the Python between; a step that is all under one "
    "jax.jit saves the time between its other calls too"
)


def small_programs(context: RuleContext) -> Iterator[Finding]:
    """Many small compiled functions per step in JAX: operations outside jax.jit, Python loops.

    Silent for fewer than 20 such calls per step. A call is small if half of the calls of its
    function take less than 0.2 ms, and counts if its function is called more than once per step.
    On a device only the time in which it idles meanwhile is a gain.
    """
    if not context.is_jax or context.context_trace:
        return
    every = context.search.outermost(context.search.find(CALL.pattern, on_device=False))
    calls = _repeated(context, every, SMALL_NS)
    if context.measures.calls(calls) < MANY:
        return
    names = Counter(context.search.name(row) for row in calls.tolist()).most_common(MOST_NAMES)
    listed = ", ".join(CALL.sub(r"\1", name) for name, _ in names)
    yield context.finding(
        f"Each step starts {rounded(context.measures.calls(calls), 4)} small programs one by one, "
        f"{rounded(context.measures.ms(calls))} ms. Mostly {listed}.",
        "Move these operations into the jitted step, or into one function under jax.jit. A Python "
        "loop of equal calls becomes jax.lax.scan or jax.lax.fori_loop, one over a batch jax.vmap.",
        calls,
        _gain(context, calls, every),
    )


def _repeated(context: RuleContext, calls: Rows, below_ns: int) -> Rows:
    """Those of functions that are called repeatedly in a step, and are shorter, by the median."""
    code, time = context.events["name"][calls], context.events["duration_ns"][calls]
    _, function, count = np.unique(code, return_inverse=True, return_counts=True)
    short = [np.median(time[function == one]) < below_ns for one in range(len(count))]
    chosen = np.array(short, np.bool_) & (count > context.step_count)
    return calls[chosen[function]] if len(calls) else calls


def _gain(context: RuleContext, calls: Rows, every: Rows) -> Gain:
    between = _python_between(context, calls, every)
    if context.measures.has_device:
        spans = context.measures.spans(calls).union(between)
        idle = context.measures.recurring_ms(spans.intersect(context.measures.idle()))
        return context.gains.bound(idle, "at most the device's idle time")
    ms = context.measures.ms(calls) + context.measures.per_step(between.total())
    functions = map(called_function, context.search.names(_repeated(context, every, LONG_NS)))
    most_ms = context.measures.all_but_ms(context.search.works_of_others(functions))
    return context.gains.without(calls, ms, NOTE, most_ms)


def _python_between(context: RuleContext, calls: Rows, every: Rows) -> Intervals:
    """From each small call to the next call of its thread in the step, but for waits of other calls.

    Longer times are no dispatch: something else ran.
    """
    events = context.events
    every = every[np.lexsort((events["start_ns"][every], events["track"][every]))]
    track, step = (events[name][every] for name in ("track", "step"))
    start, end = events.spans(every)
    near = (np.diff(track) == 0) & (np.diff(step) == 0) & (start[1:] - end[:-1] < LONG_NS)
    near &= np.isin(every[:-1], calls)
    waits = events.text("name").where(is_wait) & np.isin(events["track"], track)
    between = Intervals(end[:-1][near], start[1:][near]).minus(context.measures.spans(np.flatnonzero(waits)))
    near &= (np.diff(events["name"][every]) == 0) & (not context.measures.has_device)
    near[1:] &= near[:-1].copy()  # a loop waits for each of its calls; the first wait may be for others
    near[:1] = False
    return between.union(Intervals(end[:-1][near], start[1:][near]))
