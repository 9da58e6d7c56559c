"""`exposed_communication`: devices exchange data, and compute nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.subject import Subject

LEAST = 0.05
ADVICE = (
    "Let collectives run while backward goes on (DistributedDataParallel, bucket_cap_mb, FSDP "
    "prefetching), send less (16 bits) or less often (gradient accumulation with no_sync()), or "
    "see whether one rank is late."
)
JAX = (
    "Let collectives run while other work goes on (XLA_FLAGS=--xla_gpu_enable_latency_hiding_"
    "scheduler=true), send less (gradients in jnp.bfloat16) or less often (several batches for one "
    "update), or see whether one rank is late."
)


def exposed_communication(subject: Subject) -> Iterator[Finding]:
    """Communication that nothing hides: the device does nothing else while it lasts.

    Silent below 5 % of the step, and without a device where no thread of the training loop waits
    in a collective for that long.
    """
    rows = subject.find(category="communication", on_device=subject.has_device)
    if not len(rows):
        return
    exposed = subject.idle_ms("communication") if subject.has_device else subject.waits_ms(rows)
    if exposed < LEAST * subject.step_ms:
        return
    device = subject.busiest_device
    whole = subject.spans(rows).total() / 1e6 / subject.count
    hidden = device.overlapped_ms if device else whole - exposed
    yield subject.finding(
        f"Communication is exposed for {exposed:.3g} ms of the step "
        f"({exposed / subject.step_ms:.0%}); {max(hidden, 0):.3g} ms more are hidden behind "
        "computing.",
        subject.in_words(ADVICE, jax=JAX),
        rows,
        _gain(subject, exposed),
    )


def _gain(subject: Subject, exposed: float) -> Gain:
    """What free collectives would give back; of several ranks what they wait in them, if more."""
    if not subject.has_device:
        return subject.bound(exposed, "at most the time that nothing hides")
    free = subject.whatif("scale:select=category=communication,factor=0")
    several = len(subject.trace.metadata.ranks) > 1
    if free is None or (several and free.ms < LEAST * exposed):
        return subject.bound(exposed, "at most the time that nothing hides, mostly waiting")
    return replace(free, note="at most: collectives that cost nothing")
