"""`kernel_fusion`: chains of small elementwise kernels (DEEPCONTEXT 4.3, 2; 6.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Ids, Rows
from stepscope.trace.schema import FORWARD_STAGES

CAUSE = "elementwise"
SMALL_NS = 10_000  # about what a launch costs: shorter kernels cannot keep the device busy
MANY = 20
LONG_CHAIN = 3
LONGEST_CALL_NS = 200_000  # between two operators; in a longer time something else happens
LEAST_LARGE = 0.10
LIBRARIES = {
    "transformers": "Set torch_compile=True in TrainingArguments.",
    "timm": "Run with --torchcompile.",
}
ADVICE = (
    "Fuse them: apply torch.compile to the model or to this function, or use a fused operator "
    "(F.gelu, F.layer_norm, F.cross_entropy)."
)
JAX = (
    "XLA fuses within one program: put the whole step under one jax.jit, with no Python and no "
    "jax.block_until_ready between its parts."
)
_CONVOLUTION = re.compile("conv", re.IGNORECASE)
_STAGES = (*FORWARD_STAGES, "backward")


def kernel_fusion(context: RuleContext) -> Iterator[Finding]:
    """Many small elementwise kernels (on a CPU, operators) in a row, which torch.compile fuses.

    Silent below 20 of them per step, and if they take 10 µs or more: on a device the mean, on a
    CPU the median. Longer ones count from 10 % of the step, in chains of 3 or more.

    Source: DEEPCONTEXT section 4.3, "Kernel Fusion Analysis"; section 6.3, 30.5 s to 23.9 s.
    """
    rows = _kernels(context) if context.has_device else _operators(context)
    chain = _chains(context, rows)
    rows, chain = rows[chain >= 0], chain[chain >= 0]
    # On a CPU a few operators that waited for a core would set the mean.
    if not len(rows):
        return
    typical = np.mean if context.has_device else np.median
    typical_ns = float(typical(context.each_ns(rows)))
    what = "kernels" if context.has_device else "operators"
    if typical_ns >= SMALL_NS:
        yield from _large(context, rows, chain, what)
        return
    if context.calls(rows) < MANY:
        return
    yield context.finding(
        f"{context.calls(rows):.4g} small elementwise {what} per step, {typical_ns / 1e3:.2g} µs "
        f"each, run in {len(np.unique(chain)) / context.step_count:.4g} chains.",
        context.advice(ADVICE, jax=JAX, **LIBRARIES),
        rows,
        _gain(context, rows) if context.has_device else _fused(context, rows, chain),
    )


def _large(context: RuleContext, rows: Rows, chain: Ids, what: str) -> Iterator[Finding]:
    """Long chains of kernels that are not small: each reads and writes whole tensors."""
    long = np.bincount(chain)[chain] >= LONG_CHAIN
    rows, chain = rows[long], chain[long]
    spent = context.ms(rows)
    if not len(rows) or spent < LEAST_LARGE * context.steady_ms:
        return
    yield context.finding(
        f"Chains of elementwise {what} take {spent:.3g} ms per step "
        f"({spent / context.steady_ms:.0%}){context.main_place(rows)}: each of "
        f"{context.calls(rows):.4g} {what} reads and writes its whole tensor.",
        context.advice(ADVICE, jax=JAX, **LIBRARIES),
        rows,
        _gain(context, rows) if context.has_device else _fused(context, rows, chain),
    )


def _gain(context: RuleContext, rows: Rows) -> Gain:
    """At most the time of the kernels and of the calls that launch them."""
    return context.gain(rows, "kernel_fusion")


def _kernels(context: RuleContext) -> Rows:
    """Elementwise kernels, except those that a convolution launches to change layouts."""
    rows = context.find(category="kernel", kind="elementwise", stage=_STAGES, on_device=True)
    operator = context.operator_of(rows)
    inside = context.events.text("name").where(lambda name: bool(_CONVOLUTION.search(name)))
    return rows[(operator < 0) | ~inside[operator]]


def _operators(context: RuleContext) -> Rows:
    calls = context.find(category="cpu_op", kind="elementwise", stage=_STAGES)
    return context.innermost_operators(calls)


def _chains(context: RuleContext, rows: Rows) -> Ids:
    """The chain number of each: neighbors on a track with no other work between them.

    -1 for a kernel without such neighbors.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    work = context.find(category="kernel", on_device=True) if context.has_device \
        else context.innermost_operators(context.find(category="cpu_op"))  # fmt: skip
    work = work[np.lexsort((work, context.events["track"][work]))]
    chosen = np.isin(work, rows)
    same = np.diff(context.events["track"][work], prepend=-1) == 0
    begins = ~(chosen & same & np.append(False, chosen[:-1]))
    number = np.cumsum(begins)
    size = np.bincount(number[chosen], minlength=int(number[-1]) + 1)
    found = np.where(size[number] > 1, number, -1)[chosen]
    order = np.argsort(work[chosen])
    result: Ids = found[order]
    return result


def _fused(context: RuleContext, rows: Rows, chain: Ids) -> Gain:
    """The time of each chain, with the calls between its operators, except its longest operator."""
    start, duration = context.events["start_ns"][rows], context.events["duration_ns"][rows]
    longest = np.zeros(int(chain.max()) + 1)
    np.maximum.at(longest, chain, duration)
    order = np.lexsort((start, chain))
    between = start[order][1:] - (start + duration)[order][:-1]
    called = (np.diff(chain[order]) == 0) & (between > 0) & (between < LONGEST_CALL_NS)
    ms = (duration.sum() + between[called].sum() - longest.sum()) / 1e6 / context.step_count
    return context.bound(ms, "if each chain took as long as its longest operator")
