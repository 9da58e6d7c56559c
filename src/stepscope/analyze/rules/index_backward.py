"""`index_backward`: the gradient of indexing is summed in a fixed order (DEEPCONTEXT 6.1)."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext

LEAST = 0.02


def index_backward(context: RuleContext) -> Iterator[Finding]:
    """Backward of tensor[indices], which adds gradients of equal indices one after the other.

    Silent if it takes less than 2 % of the step. index_select, gather and embedding do not count.

    Source: DEEPCONTEXT section 6.1: 39.6 % of DLRM's GPU time; 73.2 s to 44.0 s with index_select.
    """
    rows = context.outermost(context.find(r"^IndexBackward0$", category="cpu_op"))
    if not len(rows):
        return
    work = context.find(inside=rows, on_device=True) if context.has_device else rows
    if context.share(work) < LEAST:
        return
    yield context.finding(
        f"The backward pass of indexing (tensor[indices]) takes {context.ms(work):.3g} ms per "
        "step.",
        "To index one dimension use torch.index_select or, for rows, F.embedding: their backward "
        "need not add in a fixed order.",
        work,
        context.gain(rows, "scale:select=operator=IndexBackward0,factor=0",
                     note="at most: with a backward that takes no time"),
    )  # fmt: skip
