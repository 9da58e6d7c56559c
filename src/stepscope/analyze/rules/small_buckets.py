"""`small_buckets`: gradients are exchanged in many small collectives."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Floats, Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import FORWARD_STAGES

CAUSE = "communication"
MANY = 16  # collectives per step
SMALL_BYTES = 1 << 20  # the first bucket of DistributedDataParallel, its smallest
BUCKET_BYTES = 25 << 20  # the default of DistributedDataParallel
LIBRARIES = {
    "transformers": "Set ddp_bucket_cap_mb in TrainingArguments (25 is PyTorch's default).",
    "lightning": "Use DDPStrategy(bucket_cap_mb=25).",
}


def small_buckets(context: RuleContext) -> Iterator[Finding]:
    """At least 16 collectives of gradients per step that send less than 1 MiB each.

    Silent if the trace records neither how much collectives send nor how large the gradients are
    that DistributedDataParallel exchanges, and if nothing trains. Those of the model do not count:
    tensor parallelism sums activations.
    """
    if not context.trains:
        return
    rows = context.search.find(
        r"(?i)all_?reduce", category="communication", on_device=context.measures.has_device
    )
    rows = rows[~context.events.text("stage").mask(*FORWARD_STAGES)[rows]]
    sent: Floats = np.maximum(context.events["bytes"][rows], 0).astype(np.float64)
    if not sent.any():
        sent = _of_gradients(context, rows)
    rows, sent = rows[sent > 0], sent[sent > 0]
    if context.measures.calls(rows) < MANY or float(np.median(sent)) >= SMALL_BYTES:
        return
    needed = max(float(sent.sum()) / context.step_count / BUCKET_BYTES, 1.0)
    yield context.finding(
        f"Each step runs {rounded(context.measures.calls(rows), 4)} all-reduces of "
        f"{rounded(np.median(sent) / 1e3)} kB, {rounded(context.measures.ms(rows))} ms: latency dominates.",
        context.advice(
            "Exchange gradients in larger buckets: DistributedDataParallel(bucket_cap_mb=25) "
            "instead of a loop of all_reduce calls or a smaller bucket_cap_mb.",
            **LIBRARIES,
        ),
        rows,
        _gain(context, rows, min(needed / context.measures.calls(rows), 1.0)),
        patch=context.patch("ddp", bucket_cap_mb=None),
    )


def _gain(context: RuleContext, rows: Rows, left: float) -> Gain:
    """On a CPU all-reduces also take cores and caches from the backward pass."""
    if context.measures.has_device:
        return context.gains.scaled(rows, left, "if latency were paid once per 25 MiB")
    spent = context.measures.elapsed_ms(rows)
    return context.gains.bound((1 - left) * spent, "at most the time of the others")


def _of_gradients(context: RuleContext, rows: Rows) -> Floats:
    """An equal share of all gradients for each collective, bytes; 0 if DDP calls other ones too.

    gloo records no sizes. DDP calls its all-reduces where a gradient is accumulated.
    """
    nodes = context.search.find(r"AccumulateGrad", on_device=False)
    calls = context.search.find(r"^c10d::allreduce_$", inside=nodes)
    gradients = context.measures.summary.parameter_bytes or 0
    known = 0 < len(calls) == len(rows)
    return np.full(len(rows), gradients / context.measures.calls(calls) if known else 0.0)
