"""`fp64_matmul`: matrix products in FP64."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import PRODUCT_KINDS
from stepscope.trace.sets import mask_of

HALF = "if FP32 took half as long"
OTHERS_ON_CPU = 0.4  # of elementwise work: a step of it that LBFGS trains took 0.59 of FP64 as a whole
LEFT_ON_CPU = 0.25  # of FP64: half of the bytes, and vectors of twice as many values
DOUBLE_BYTES = 8  # of each operand, as XLA's programs have it
_KERNELS = r"(?<![a-zA-Z])(dgemm|Dgemm)|d884|_f64|f64f64|<double|double>"  # no BatchedGemm


def fp64_matmul(context: RuleContext) -> Iterator[Finding]:
    """Matrix products and convolutions in FP64.

    Silent below 5 % of the step, and where neither the types of inputs nor the names of kernels show it.
    """
    rows = _on_device(context) if context.measures.has_device else _on_cpu(context)
    if context.measures.share(rows, own=not context.measures.has_device) < LEAST_SHARE:
        return
    spent = context.events["duration_ns" if context.measures.has_device else "self_ns"][rows].sum()
    yield context.finding(
        f"Matrix products and convolutions compute in FP64, "
        f"{rounded(context.measures.per_step(spent))} ms per step.{context.main_place(rows)}",
        context.by_framework(
            "If the accuracy of FP32 is enough, convert the model and its inputs with .float(). "
            "Arrays of NumPy are FP64 by default: torch.from_numpy keeps that.",
            jax="If the accuracy of FP32 is enough, leave jax_enable_x64 off, or convert "
            "parameters and inputs with .astype(jnp.float32).",
        ),
        rows,
        _gain(context, rows),
    )


def _gain(context: RuleContext, products: Rows) -> Gain:
    """Products in half of the time, and what else computes in FP64; at most all of it.

    FP32 has half of the bytes, and at least twice the rate, on some devices 64 times.
    """
    every = context.search.find(category="cpu_op")
    doubles = context.search.each_argument(every, "Input type", lambda types: (types or [""])[0] == "double")
    every = every[np.array(doubles, np.bool_) | context.is_jax]  # which has one switch for all of a program
    if context.measures.has_device:
        every = context.search.find(inside=every, on_device=True)
    every = context.search.outermost(np.union1d(every, products))
    is_product = np.isin(every, products) | context.search.holding(products)[every]
    factor = np.where(is_product | context.measures.has_device, 0.5, OTHERS_ON_CPU)
    low, half = context.gains.scaled(products, 0.5, HALF), context.gains.scaled(every, factor, HALF)
    most_ms = (1 - LEFT_ON_CPU) * context.measures.elapsed_ms(every)  # of XLA, simulations keep waits
    if context.measures.has_device:
        most_ms = context.gains.scaled(every).ms
    return replace(half, range_ms=(min(low.ms, half.ms), max(most_ms, half.ms)))


def _on_device(context: RuleContext) -> Rows:
    kernels = context.search.find(kind=PRODUCT_KINDS, on_device=True)
    callers = context.search.operator_of(kernels)
    doubles = mask_of(_of_doubles(context, np.unique(callers[callers >= 0])), len(context.events) + 1)
    named = context.search.find(_KERNELS, kind=PRODUCT_KINDS, on_device=True)
    return np.union1d(np.union1d(kernels[doubles[callers]], named), _of_doubles(context, kernels))


def _on_cpu(context: RuleContext) -> Rows:
    """Products of doubles, without the operators that only call them."""
    rows = _of_doubles(context, context.search.find(kind=PRODUCT_KINDS, category="cpu_op"))
    return rows[context.measures.roofline(rows).flops != 0]


def _of_doubles(context: RuleContext, rows: Rows) -> Rows:
    doubles = context.search.each_argument(
        rows, "Input type", lambda types: (types or [])[:2] == ["double"] * 2
    )
    wide = context.search.each_argument(rows, "operand_bytes", lambda width: width == DOUBLE_BYTES)
    return rows[np.array(doubles, np.bool_) | np.array(wide, np.bool_)]
