"""`fsdp_prefetch`: sharded layers are gathered only when they are needed."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Floats, Rows
from stepscope.base.numbers import rounded

CAUSE = "communication"
EXPLAINS = ("communication",)
MOSTLY = 0.5  # of the time of all-gathers
FEWEST = 3  # all-gathers per step
_FSDP = r"FSDP|FullyShardedDataParallel|fully_shard"
_FIRST_VERSION = r"FullyShardedDataParallel[._]"
_GATHER = r"(?i)all_?gather"


class _FsdpPass(NamedTuple):
    """A pass of the step: its stages, and what prefetches in FSDP of 2023 and in fully_shard."""

    name: str
    stages: tuple[str, ...]
    first: str
    second: str


_PASSES = (
    _FsdpPass(
        "forward",
        ("forward", "loss"),
        "forward_prefetch=True",
        "module.set_modules_to_forward_prefetch([next_layer])",
    ),
    _FsdpPass(
        "backward",
        ("backward",),
        "backward_prefetch=BackwardPrefetch.BACKWARD_PRE",
        "module.set_modules_to_backward_prefetch([previous_layer])",
    ),
)
LIBRARIES = {
    "transformers": "Set fsdp_config={'forward_prefetch': True, 'backward_prefetch': "
    "'backward_pre'} in TrainingArguments.",
    "accelerate": "Set fsdp_forward_prefetch and fsdp_backward_prefetch: BACKWARD_PRE in the configuration.",
}


def fsdp_prefetch(context: RuleContext) -> Iterator[Finding]:
    """FSDP's all-gathers that overlap no computation, as each starts when the layer before it ends.

    Silent if nothing in the trace names FSDP, for fewer than 3 all-gathers per step, if half of
    their time is hidden, and if a layer's computation could hide less than 5 % of the step.
    """
    if not context.measures.has_device or context.context_trace or not len(context.search.find(_FSDP)):
        return
    for one in _PASSES:
        rows = context.search.find(_GATHER, category="communication", on_device=True, stage=one.stages)
        exposed, hidable = _exposed_ns(context, rows)
        whole = float(context.events["duration_ns"][rows].sum())
        saved = context.measures.per_step(hidable.sum())
        hides = exposed.sum() < MOSTLY * whole or context.measures.is_small(saved)
        if hides or context.measures.calls(rows) < FEWEST:
            continue
        how = f"{one.second} for each layer of fully_shard"
        if len(context.search.find(_FIRST_VERSION)):
            how = f"FullyShardedDataParallel({one.first})"
        yield context.finding(
            f"FSDP gathers each layer only when the {one.name} pass needs it. Per step "
            f"{rounded(context.measures.calls(rows), 4)} all-gathers take "
            f"{rounded(context.measures.per_step(exposed.sum()))} ms in which the device computes nothing.",
            context.advice(f"Gather the next layer early: {how}.", **LIBRARIES),
            rows,
            context.gains.bound(saved, "if each ran while the layer before it computes"),
        )


def _exposed_ns(context: RuleContext, rows: Rows) -> tuple[Floats, Floats]:
    """Per all-gather the time in which the device computes nothing, and how much of that the
    computation since the all-gather before it could hide, ns."""
    start, end = context.events.spans(rows)
    computing = context.measures.spans(context.search.find(category="kernel", on_device=True))
    exposed = (end - start) - computing.within(start, end)
    before = np.concatenate([start[:1], end[:-1]])
    room = computing.within(before, np.maximum(start, before))
    return exposed.astype(np.float64), np.minimum(exposed, room).astype(np.float64)
