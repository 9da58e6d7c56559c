"""`exposed_communication`: collectives that overlap no computation."""

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded

CAUSE = "communication"
EXPLAINS = ("communication",)
NOTICE = True  # also where ranks wait for each other, which no faster collective changes
LEAST_MS = 0.001  # less would be shown as 0
LEAST_GAIN = 0.01  # of the step
ADVICE = (
    "Overlap collectives with backward (DistributedDataParallel, bucket_cap_mb, FSDP "
    "prefetching). Send less data (16 bits) or send less often (gradient accumulation with "
    "no_sync()), and check whether one rank is late."
)
EXCHANGES = (
    "Overlap the exchange with computation that does not need it (split the batch, prefetch the "
    "next one). Send less data (16 or 8 bits), and check whether one rank is late."
)
METRICS = (
    "Most of it is small calls outside of backward: reduce several tensors as one. Metrics and flags "
    "are needed every N steps only; leave out barriers."
)
INFERENCE = (
    "Use an all-reduce for small messages (a custom or symmetric-memory one), or fewer "
    "tensor-parallel ranks. Overlap collectives with the other half of a split batch, send less "
    "data (16 or 8 bits), and check whether one rank is late."
)
_HIDDEN_IN_JAX = (
    "Overlap collectives with other work (XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true)"
)
INFERENCE_IN_JAX = f"{_HIDDEN_IN_JAX}, send less data (jnp.bfloat16), and check whether one rank is late."
WAITS = " It is mostly waiting for other ranks."
BALANCE = (
    "Make the ranks equally fast in every step; faster collectives would change little. "
    "`stepscope ranks` and the matrix of collectives show who arrives last."
)
_SHARDS = r"(?i)reduce_?scatter|all_?gather"  # gradients and parameters of FSDP and ZeRO
_LARGE = 1 << 20  # bytes: DistributedDataParallel's smallest bucket; metrics are single values
_EXCHANGE = r"(?i)send_?recv|all_?to_?all|(^|:)(send|recv)"  # between stages, tables or experts
JAX = (
    f"{_HIDDEN_IN_JAX}. Send less data (gradients in jnp.bfloat16) or send less often (several batches per "
    "update), and check whether one rank is late."
)
ANY = "Overlap collectives with other work, send less data (16 bits), and check whether one rank is late."
_HALVED = re.compile(r"Send less data \(16 bits\) or s|, send less data \(16 bits\)|16 or (?=8 bits)")
_HALF = ("Half", "BFloat16")  # of `dtype`, as torch.profiler writes it


def exposed_communication(context: RuleContext) -> Iterator[Finding]:
    """Communication that overlaps no other work of the device.

    Silent below 5 % of the step, and where collectives that take no time gain less than 1 %, unless ranks
    wait for each other. On a CPU, only time in which the training loop waits in a collective counts.
    """
    found = (context.search.find(category="communication", on_device=here) for here in (True, False))
    rows = next(filter(len, found), None)  # of the host where a device only waits, as for Gloo
    if rows is None:
        return
    measures = context.measures
    exposed = measures.idle_ms("communication") if measures.has_device else measures.wait_ms()
    if context.measures.is_small(exposed):
        return
    device = context.measures.busiest_device
    share = measures.idle_share("communication") if device else min(exposed / measures.step_ms, 1.0)
    hidden = device.overlapped_ms if device else measures.elapsed_ms(rows) - exposed
    beside = f" Another {rounded(hidden)} ms overlaps with computation." if hidden >= LEAST_MS else ""
    gain = _gain(context, exposed)
    is_pipeline = context.job is not None and context.job.pipeline is not None  # its stages have to wait
    waits = context.job is not None and not is_pipeline and gain.ms < LEAST_SHARE * exposed
    if not waits and gain.ms < LEAST_GAIN * context.measures.step_ms:
        return  # the CPU, or other work, would take as long
    yield context.finding(
        f"Communication is exposed for {rounded(exposed)} ms of the step "
        f"({share:.0%}).{beside}{WAITS if waits else ''}",
        BALANCE if waits else _unless_done(context, rows, _advice(context, rows)),
        rows,
        gain,
    )


def _advice(context: RuleContext, rows: Rows) -> str:
    """What helps those that take most of the time: DDP's options change gradients only."""
    jax = JAX if context.trains else INFERENCE_IN_JAX
    half = context.measures.ms(rows) / 2
    if context.measures.ms(context.search.find(_EXCHANGE, inside=rows)) > half:
        return context.by_framework(EXCHANGES, jax=jax)
    metrics = rows[context.events.text("stage").mask("loss", "other")[rows]]
    metrics = np.setdiff1d(metrics, context.search.find(_SHARDS, inside=rows))
    metrics = metrics[context.events["bytes"][metrics] < _LARGE]
    training = METRICS if context.measures.ms(metrics) > half else ADVICE
    return context.by_framework(training, jax=jax, inference=INFERENCE if context.serves else ANY)


def _unless_done(context: RuleContext, rows: Rows, advice: str) -> str:
    """Without the advice to send 16 bits where most of the time is of collectives that do."""
    half = np.array(context.search.each_argument(rows, "dtype", lambda dtype: dtype in _HALF), np.bool_)
    if 2 * context.measures.ms(rows[half]) <= context.measures.ms(rows):
        return advice
    return _HALVED.sub(lambda found: "S" * found[0].startswith("S"), advice)


def _gain(context: RuleContext, exposed: float) -> Gain:
    """The gain of collectives without cost, simulated for all ranks together if there are several.

    The wait for a rank that is late is the gain of `straggling_rank`.
    """
    simulates = context.job or context.measures.has_device
    free = context.gains.whatif("scale:select=category=communication,factor=0") if simulates else None
    if free is None:
        return context.gains.bound(exposed, "at most the exposed time")
    return free.as_bound("at most: with collectives that take no time")
