"""`index_backward`: the gradient of indexing is summed in a fixed order (DEEPCONTEXT 6.1)."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import are_of_pytorch
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.nesting import inherit

LEAST = 0.02  # of the step


def index_backward(context: RuleContext) -> Iterator[Finding]:
    """Backward of tensor[indices], which adds gradients of equal indices one after the other.

    Silent if it takes less than 2 % of the step. index_select, gather and embedding do not count,
    nor do masks, which they do not take, nor indexing in PyTorch's own modules.

    Source: DEEPCONTEXT section 6.1: 39.6 % of DLRM's GPU time; 73.2 s to 44.0 s with index_select.
    """
    rows = _of_the_user(context, context.search.find(r"^IndexBackward0$", category="cpu_op"))
    if not len(rows):
        return
    work = context.search.find(inside=rows, on_device=True) if context.measures.has_device else rows
    if context.measures.share(work) < LEAST:
        return
    yield context.finding(
        "The backward pass of indexing (tensor[indices]) takes "
        f"{rounded(context.measures.ms(work))} ms per step.",
        "To index one dimension use torch.index_select or, for rows, F.embedding. Their backward "
        "need not add in a fixed order.",
        work,
        _gain(context, rows),
    )


def _of_the_user(context: RuleContext, rows: Rows) -> Rows:
    """The outermost of these nodes, but for those of masks and of indexing in PyTorch's own modules."""
    rows = rows[~context.search.holding(context.search.find(r"^aten::nonzero$", inside=rows))[rows]]
    forward = inherit(context.events["parent"], context.events["forward_event"])[rows]
    known = forward >= 0
    of_pytorch = are_of_pytorch(context.trace, np.maximum(forward, 0)) & known
    return context.search.outermost(rows[~of_pytorch])


def _gain(context: RuleContext, rows: Rows) -> Gain:
    """At most the time of the backward pass; on a CPU also of the indexing itself."""
    if context.measures.has_device or context.context_trace:
        return context.gains.gain(
            rows,
            "scale:select=operator=IndexBackward0,factor=0",
            at_most="at most: with a backward that takes no time",
        )
    backward = context.eager.around(rows)
    forward = context.eager.forward[backward]
    both = np.concatenate([backward, forward[forward >= 0]])
    return context.gains.bound(context.eager.ms(both), "at most the time of the indexing and its gradient")
