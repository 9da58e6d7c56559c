"""`anomaly_detection`: every gradient is checked for NaN."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain, only_call
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.sets import distinct

_NODE = r"^autograd::engine::evaluate_function: "
_CHECK = r"^aten::isnan$"
_OF_CHECK = r"^aten::(isnan|_is_any_true|any|all|item|is_nonzero)$"
_VIEWS = r"^aten::(view|transpose|t|permute|expand|unsqueeze|squeeze|_unsafe_view|reshape)$"
VIEW_NS = 10_000  # a view takes less
LEAST_SHARE = 0.3  # of the nodes; those that accumulate gradients have nothing to check
LEAST_NODES = 3  # per step
ADVICE = (
    "Leave out torch.autograd.set_detect_anomaly(True) and torch.autograd.detect_anomaly() unless "
    "you search for a NaN. They also record the Python stack of each operation in forward."
)
LIBRARIES = {"lightning": "Create the Trainer with detect_anomaly=False."}


def anomaly_detection(context: RuleContext) -> Iterator[Finding]:
    """Checks of each gradient for NaN, by PyTorch's anomaly detection.

    Silent unless 30 % of the nodes of backward call `aten::isnan` themselves.
    """
    nodes = context.search.find(_NODE)
    checks = _inside(context, nodes, _CHECK)
    checked = len(distinct(context.events["parent"][checks]))
    if checked < max(LEAST_SHARE * len(nodes), LEAST_NODES * context.step_count):
        return
    rows = _inside(context, nodes, _OF_CHECK)
    call = only_call(context.trace.metadata, "anomaly_detection")
    found = context.finding(
        f"Anomaly detection checks {rounded(context.measures.calls(checks), 4)} "
        f"gradients per step for NaN, {rounded(context.measures.ms(rows))} ms.",
        context.advice(ADVICE, **LIBRARIES),
        rows,
        _gain(context, rows),
    )
    yield found.at_line(call["file"], call["line"], "") if call else found


def _inside(context: RuleContext, nodes: Rows, pattern: str) -> Rows:
    rows = context.search.find(pattern, category="cpu_op")
    return rows[np.isin(context.events["parent"][rows], nodes)]


def _gain(context: RuleContext, checks: Rows) -> Gain:
    """The checks, and on a CPU a stack for each operator with a gradient, as long as views of them take."""
    if context.measures.has_device:
        return context.gains.scaled(checks, 0.0, "without the checks; stacks cost CPU time besides")
    recorded = context.search.find(f"{_NODE}(?!.*AccumulateGrad)")
    views = context.search.find(_VIEWS, category="cpu_op", stage="forward")
    views = views[context.events["sequence"][views] >= 0]  # those that have a gradient
    each = np.mean(context.events["self_ns"][views]) if len(views) else 0.0
    stacks = context.measures.per_step(max(float(each) - VIEW_NS, 0.0) * len(recorded))
    return context.gains.bound(
        min(context.measures.ms(checks) + stacks, context.measures.steady_ms),
        "at most the checks, and a stack for each operation as long as a view takes",
    )
