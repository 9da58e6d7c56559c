"""`exposed_communication`: collectives that overlap no computation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Rows
from stepscope.summary.numbers import rounded

CAUSE = "communication"
EXPLAINS = ("communication",)
LEAST = 0.05
LEAST_MS = 0.001
ADVICE = (
    "Overlap collectives with backward (DistributedDataParallel, bucket_cap_mb, FSDP "
    "prefetching), send less data (16 bits) or send less often (gradient accumulation with "
    "no_sync()), and check whether one rank is late."
)
EXCHANGES = (
    "Overlap the exchange with computation that does not need it (split the batch, prefetch the "
    "next one), send less data (16 or 8 bits), and check whether one rank is late."
)
_EXCHANGE = r"(?i)send_?recv|all_?to_?all|^(send|recv)"  # between stages, tables or experts
JAX = (
    "Overlap collectives with other work (XLA_FLAGS=--xla_gpu_enable_latency_hiding_"
    "scheduler=true), send less data (gradients in jnp.bfloat16) or send less often (several "
    "batches per update), and check whether one rank is late."
)


def exposed_communication(context: RuleContext) -> Iterator[Finding]:
    """Communication that overlaps no other work of the device.

    Silent below 5 % of the step. On a CPU, only time in which the training loop waits in a
    collective counts.
    """
    rows = context.find(category="communication", on_device=context.has_device)
    if not len(rows):
        return
    exposed = context.idle_ms("communication") if context.has_device else context.wait_ms()
    if exposed < LEAST * context.steady_ms:
        return
    device = context.measures.busiest_device
    whole = context.spans(rows).total() / 1e6 / context.step_count
    hidden = device.overlapped_ms if device else whole - exposed
    yield context.finding(
        f"Communication is exposed for {rounded(exposed)} ms of the step "
        f"({exposed / context.steady_ms:.0%}){_hidden(hidden)}.",
        context.by_framework(EXCHANGES if _exchanges(context, rows) else ADVICE, jax=JAX),
        rows,
        _gain(context, exposed),
    )


def _exchanges(context: RuleContext, rows: Rows) -> bool:
    """Whether ranks mostly send each other different data, which DDP's options do not change."""
    return context.ms(context.find(_EXCHANGE, inside=rows)) > context.ms(rows) / 2


def _hidden(ms: float) -> str:
    return f"; another {rounded(ms)} ms overlap with computation" if ms >= LEAST_MS else ""


def _gain(context: RuleContext, exposed: float) -> Gain:
    """The gain of collectives without cost; of several ranks at least what no late rank explains.

    The wait for a rank that is late is the gain of `straggling_rank`.
    """
    job = context.job
    if not (job or context.has_device):
        return context.bound(exposed, "at most the exposed time")
    free = context.whatif("scale:select=category=communication,factor=0")
    if free is None or (job and free.ms < LEAST * exposed):
        late = sum(one.cost_ms for one in job.slow_ranks) if job else 0
        most = max(exposed - late, free.ms if free else 0)
        return context.bound(most, "at most the exposed time, mostly waiting")
    return replace(free, note="at most: with collectives that take no time")
