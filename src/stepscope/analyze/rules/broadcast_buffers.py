"""`broadcast_buffers`: DDP sends the buffers of its model from the first rank before each forward pass."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

CAUSE = "communication"
_SENDS = r"^aten::(un)?flatten_dense_tensors$|^c10d::broadcast_$"
LIBRARIES = {
    "transformers": "Set ddp_broadcast_buffers=False in TrainingArguments.",
    "lightning": "Use strategy=DDPStrategy(broadcast_buffers=False).",
    "accelerate": "Pass DistributedDataParallelKwargs(broadcast_buffers=False).",
}


def broadcast_buffers(context: RuleContext) -> Iterator[Finding]:
    """DistributedDataParallel that broadcasts buffers, such as the statistics of BatchNorm, each step.

    Silent below 1 % of the step.
    """
    forward = context.search.find(r"^DistributedDataParallel\.forward$", on_device=False)
    calls = context.search.outermost(context.search.find(_SENDS, on_device=False, inside=forward))
    if not len(calls):
        return
    sent = context.search.find(r"(?i)broadcast", category="communication", stage="forward")
    rows = np.union1d(calls, sent)
    ms = rounded(context.measures.elapsed_ms(rows))
    yield context.finding(
        f"DistributedDataParallel broadcasts buffers in every step, {ms} ms.",
        context.advice(
            "Create DistributedDataParallel with broadcast_buffers=False: each rank keeps the running "
            "statistics of its own batches. SyncBatchNorm keeps them equal.",
            **LIBRARIES,
        ),
        rows,
        context.gains.scaled(rows, 0.0, "if no buffers were sent"),
        patch=context.patch("ddp", broadcast_buffers="False"),
    )
