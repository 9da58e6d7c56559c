"""`kernel_fusion`: many small kernels follow each other (DEEPCONTEXT 4.3, 2; 6.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.subject import Rows, Subject

SMALL_NS = 10_000  # about what a launch costs: shorter kernels cannot keep the device busy
MANY = 20
ADVICE = (
    "Fuse them: torch.compile the model or the function they are in, or use the library's own "
    "operator (F.gelu, F.layer_norm, F.cross_entropy)."
)
JAX = (
    "XLA fuses what one program holds: put the whole step under one jax.jit, with no Python and no "
    "jax.block_until_ready between its parts."
)
_CONVOLUTION = re.compile("conv", re.IGNORECASE)
_STAGES = ("forward", "loss", "backward")


def kernel_fusion(subject: Subject) -> Iterator[Finding]:
    """Many small elementwise kernels, one after the other: what torch.compile makes one of.

    Without a device, operators.

    Silent below 20 of them a step that have such neighbours, and where they take 10 µs or more:
    their mean, on a CPU their median.

    Source: DEEPCONTEXT section 4.3, "Kernel Fusion Analysis"; section 6.3, 30.5 s to 23.9 s.
    """
    rows = _kernels(subject) if subject.has_device else _operators(subject)
    chain = _chains(subject, rows)
    rows, chain = rows[chain >= 0], chain[chain >= 0]
    if subject.calls(rows) < MANY:
        return
    # On a CPU a few operators that waited for a core would set the mean.
    typical = np.mean if subject.has_device else np.median
    typical_ns = float(typical(subject.each_ns(rows)))
    if typical_ns >= SMALL_NS:
        return
    what = "kernels" if subject.has_device else "operators"
    yield subject.finding(
        f"{subject.calls(rows):.4g} small elementwise {what} a step, {typical_ns / 1e3:.2g} µs "
        f"each, follow each other in {len(np.unique(chain)) / subject.count:.4g} chains.",
        subject.in_words(ADVICE, jax=JAX),
        rows,
        _gain(subject, rows) if subject.has_device else _fused(subject, rows, chain),
    )


def _gain(subject: Subject, rows: Rows) -> Gain:
    """No more than the kernels and the calls that launch them take."""
    calls = subject.caller[rows]
    most = subject.ms(rows) + subject.ms(np.unique(calls[calls >= 0]))
    found = subject.gain(rows, "kernel_fusion")
    if found.ms <= most:
        return found
    return subject.bound(most, "at most the time of these kernels and their launches")


def _kernels(subject: Subject) -> Rows:
    """Elementwise kernels but those that a convolution launches to change layouts."""
    rows = subject.find(category="kernel", kind="elementwise", stage=_STAGES, on_device=True)
    operator = subject.operator_of(rows)
    inside = subject.events.text("name").where(lambda name: bool(_CONVOLUTION.search(name)))
    return rows[(operator < 0) | ~inside[operator]]


def _operators(subject: Subject) -> Rows:
    calls = subject.find(category="cpu_op", kind="elementwise", stage=_STAGES)
    return subject.innermost_operators(calls)


def _chains(subject: Subject, rows: Rows) -> NDArray[np.int64]:
    """The number of the chain that each is in: neighbours on a track with no other work between.

    -1 for one that is alone.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    work = subject.find(category="kernel", on_device=True) if subject.has_device \
        else subject.innermost_operators(subject.find(category="cpu_op"))  # fmt: skip
    work = work[np.lexsort((work, subject.events["track"][work]))]
    chosen = np.isin(work, rows)
    same = np.diff(subject.events["track"][work], prepend=-1) == 0
    begins = ~(chosen & same & np.append(False, chosen[:-1]))
    number = np.cumsum(begins)
    size = np.bincount(number[chosen], minlength=int(number[-1]) + 1)
    found = np.where(size[number] > 1, number, -1)[chosen]
    order = np.argsort(work[chosen])
    result: NDArray[np.int64] = found[order]
    return result


def _fused(subject: Subject, rows: Rows, chain: NDArray[np.int64]) -> Gain:
    """All of each chain but the longest of it."""
    duration = subject.events["duration_ns"][rows].astype(np.float64)
    longest = np.zeros(int(chain.max()) + 1)
    np.maximum.at(longest, chain, duration)
    ms = (duration.sum() - longest.sum()) / 1e6 / subject.count
    return subject.bound(ms, "if each chain took as long as the longest operator of it")
