"""`recomputation`: activation checkpointing repeats forward passes in backward."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import percent, rounded

ADVICE = (
    "Checkpoint none or only some of these modules if there is memory for their activations. "
    "`stepscope memory` shows the peak."
)
WHY = "if nothing were computed again"


def recomputation(context: RuleContext) -> Iterator[Finding]:
    """Forward passes that activation checkpointing repeats in backward.

    Always of the lowest severity, as memory may need it.

    Silent below 5 % of the step, and in JAX.
    """
    if context.is_jax or context.context_trace:
        return
    again = np.flatnonzero((context.events["recompute"] == 1) & context.search.in_steps)
    rows = context.search.outermost(again)
    spent = context.measures.longer_side_ms(rows)
    if not len(rows) or context.measures.is_small(spent):
        return
    yield context.finding(
        f"Checkpointing computes forward passes again, {rounded(spent)} ms per step "
        f"({percent(context.measures.part_of_step(rows, spent))}).{context.main_place(rows)}",
        ADVICE,
        rows,
        _gain(context, rows),
        limit="info",
    )


def _gain(context: RuleContext, rows: Rows) -> Gain:
    """On a CPU at most all of the nodes in which it happens: saving tensors again takes time besides."""
    gain = context.gains.scaled(rows, 0.0, WHY)
    if context.measures.has_device:
        return gain
    most = min(context.eager.ms(context.eager.around(rows)), context.measures.steady_ms)
    return replace(gain, range_ms=(0.0, max(most, gain.ms)))
