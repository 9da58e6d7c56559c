"""`small_programs`: operations of JAX that run one by one, outside of a compiled function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.annotate.names.compiled_calls import CALL
from stepscope.arrays import Rows
from stepscope.summary.numbers import rounded

CAUSE = "launches"
EXPLAINS = ("host", "launch")
MANY = 20
SMALL_NS = 200_000
MOST_NAMES = 3


def small_programs(context: RuleContext) -> Iterator[Finding]:
    """Many small compiled functions per step in JAX: operations outside jax.jit, Python loops.

    Silent for fewer than 20 such calls per step. A call is small if half of the calls of its
    function take less than 0.2 ms, and counts if its function is called more than once per step.
    On a device only the time in which it idles meanwhile is a gain.
    """
    if not context.is_jax or context.context_trace:
        return
    calls = context.outermost(context.find(CALL.pattern, on_device=False))
    calls = calls[_repeated_and_small(context, calls)]
    if context.calls(calls) < MANY:
        return
    names = Counter(context.name(row) for row in calls.tolist()).most_common(MOST_NAMES)
    listed = ", ".join(CALL.sub(r"\1", name) for name, _ in names)
    yield context.finding(
        f"Each step starts {rounded(context.calls(calls), 4)} small programs one by one, mostly "
        f"{listed}, "
        f"{rounded(context.ms(calls))} ms.",
        "Move these operations into the jitted step, or into one function under jax.jit; a Python "
        "loop of equal calls becomes jax.lax.scan or jax.lax.fori_loop, one over a batch jax.vmap.",
        calls,
        _gain(context, calls),
    )


def _repeated_and_small(context: RuleContext, calls: Rows) -> Rows:
    """Indices in `calls` of functions that are called repeatedly in a step, and are short."""
    code, time = context.events["name"][calls], context.events["duration_ns"][calls]
    _, function, count = np.unique(code, return_inverse=True, return_counts=True)
    small = [np.median(time[function == one]) < SMALL_NS for one in range(len(count))]
    chosen = np.array(small, np.bool_) & (count > context.step_count)
    return np.flatnonzero(chosen[function]) if len(calls) else calls


def _gain(context: RuleContext, calls: Rows) -> Gain:
    if context.has_device:
        return context.bound(context.idle_during_ms(calls), "at most the device's idle time")
    return context.without(calls, context.ms(calls), "at most the time of these calls")
