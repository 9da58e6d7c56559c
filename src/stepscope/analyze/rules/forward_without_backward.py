"""`forward_without_backward`: calls of the model keep what backward would need, and none comes."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Place
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import MODEL_STAGES, PRODUCT_KINDS

ADVICE = (
    "If these calls evaluate, put them under torch.inference_mode(), and evaluate less often; else "
    "put them under torch.no_grad(). They then keep nothing for backward."
)
LIBRARIES = {"lightning": "Lightning does so in validation_step, not in training_step."}


def forward_without_backward(context: RuleContext) -> Iterator[Finding]:
    """Calls of a model that trains, with gradients enabled and without a backward pass.

    Such as an evaluation without `torch.no_grad()`, or a generator whose output is detached.

    Silent below 5 % of the step, for modules that no backward pass reaches (frozen or of a
    teacher), and where operators have no sequence numbers.
    """
    products = _with_gradients(context)
    reached = _are_reached(context, products)
    # What a module computes with and without a backward pass: the same work of other calls.
    key = np.stack([context.events[name][products] for name in ("module", "name")])
    _, which = np.unique(key, axis=1, return_inverse=True)
    which = which.reshape(-1)
    trained = np.bincount(which[reached], minlength=len(products) + 1) > 0
    unused = products[~reached & trained[which] & (key[0] >= 0)]
    calls = _calls(context, unused, products[reached])
    if not len(calls) or context.measures.is_small(spent := context.measures.longer_side_ms(calls)):
        return
    found = context.finding(
        f"Trained modules run without backward {context.times(calls)} per step, {rounded(spent)} ms. "
        "Gradients are enabled there.",
        context.advice(ADVICE, **LIBRARIES),
        calls,
        context.gains.bound(spent, "at most the time of these calls, if not each step needs them"),
    )
    yield replace(found, limit="warning", evidence=_without_lines(context, calls, found.evidence))


def _without_lines(context: RuleContext, calls: Rows, evidence: tuple[Place, ...]) -> tuple[Place, ...]:
    """The same without the line of a module's first call, which is another call here."""
    if context.events.text("category").mask("python")[calls].all():
        return evidence
    return tuple(replace(one, file="", line=None, function="") for one in evidence)


def _with_gradients(context: RuleContext) -> Rows:
    rows = context.search.find(kind=PRODUCT_KINDS, category="cpu_op", stage=MODEL_STAGES)
    return rows[(context.events["sequence"][rows] >= 0) & (context.events["recompute"][rows] != 1)]


def _are_reached(context: RuleContext, rows: Rows) -> Mask:
    """Whether a backward pass anywhere in the trace has the sequence number of each operator."""
    events = context.events
    backward = events.text("stage").mask("backward") & (events["sequence"] >= 0)
    return np.isin(events["sequence"][rows], events["sequence"][backward])


def _calls(context: RuleContext, unused: Rows, reached: Rows) -> Rows:
    """The outermost module calls around some products that hold none that backward reaches."""
    ranges = context.search.module_calls
    holds = context.search.holding(unused) & ~context.search.holding(reached)
    return context.search.outermost(ranges[holds[ranges]])
