"""`slow_fallback`: products for whose type or shape the library has no fast kernel."""

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Floats, Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import PRODUCT_KINDS

CAUSE = "products"
LOW_GFLOPS = 12  # of a thread; FP32 exceeds it with AVX2, see docs/evidence/analyzer.md
LEAST_FLOPS = 1e6  # smaller products are bound by their call
LEAST_INTENSITY = 16  # FLOPs per byte; products with fewer may wait for memory
FP32_GFLOPS = (10, 20, 50)  # of a thread: low, assumed, high
_TYPES = {"c10::BFloat16": "BF16", "at::BFloat16": "BF16", "c10::Half": "FP16", "at::Half": "FP16"}
_FALLBACK = r"(?i)naive_conv|slow_conv"
ADVICE = (
    "Compute in FP32 on this CPU: without torch.autocast, or with the model and its inputs "
    "converted by .float(). {} is fast on CPUs with instructions for it ({}) and on GPUs."
)
_INSTRUCTIONS = {"BF16": "AMX or AVX-512 BF16", "FP16": "AMX-FP16 or AVX-512 FP16"}
# What PyTorch says that the CPU has. With all of AVX-512 oneDNN has kernels for BF16.
_WITHOUT_16_BITS = "AVX2"
_FAST = {("AVX512", "BF16")}
LIBRARIES = {
    "transformers": "Leave out bf16 and fp16 in TrainingArguments.",
    "lightning": "Create the Trainer with precision='32-true'.",
    "accelerate": "Create Accelerator(mixed_precision='no').",
    "keras": "Call keras.mixed_precision.set_global_policy('float32').",
    "timm": "Run without --amp.",
}
_OTHER = (
    "Choose shapes, type and layout that suit a fast convolution (channels_last, multiples of 8). "
    "Let the library search (torch.backends.cudnn.benchmark=True)."
)
_OTHER_ON_CPU = "Use FP32 and a batch of more than one image; both suit a fast convolution."


def slow_fallback(context: RuleContext) -> Iterator[Finding]:
    """Matrix products and convolutions in a slow fallback of the library.

    On a CPU these are products in BF16 or FP16 that run at less than 12 GFLOP/s, since it has no
    instructions for that type; elsewhere convolutions whose names show it. Captures of
    `stepscope run` say which instructions a CPU has; with AVX2 the limit is that of a thread.

    Silent below 5 % of the step, and for products in BF16 and FP16 without recorded shapes, below
    1 MFLOP, or that may wait for memory.
    """
    if context.context_trace:
        return
    named = context.search.find(_FALLBACK, kind="convolution", on_device=context.measures.has_device)
    for kind in () if context.measures.has_device else _slow_types(context):
        rows = np.union1d(_slow_products(context, kind), named[_are_in(context, named, kind)])
        named = np.setdiff1d(named, rows)
        if context.measures.share(rows, own=True) >= LEAST_SHARE:
            yield _in_slow_type(context, kind, rows)
    if context.measures.share(named, own=not context.measures.has_device) >= LEAST_SHARE:
        yield _by_name(context, named)


def _slow_types(context: RuleContext) -> list[str]:
    """The types that the CPU may have no instructions for, as far as the capture says."""
    capability = context.trace.metadata.capture.get("cpu_capability")
    return [kind for kind in _INSTRUCTIONS if (capability, kind) not in _FAST]


def _threads(context: RuleContext) -> int:
    """How many threads multiply; 1 where nothing says that the CPU lacks such instructions."""
    capture = context.trace.metadata.capture
    lacks = capture.get("cpu_capability") == _WITHOUT_16_BITS
    return int(capture.get("threads") or 1) if lacks else 1


def _slow_products(context: RuleContext, kind: str) -> Rows:
    rows = context.search.find(kind=PRODUCT_KINDS, category="cpu_op")
    rows = rows[_are_in(context, rows, kind)]
    work = context.measures.roofline(rows)
    rows = rows[(work.flops >= LEAST_FLOPS) & (work.flops >= LEAST_INTENSITY * work.bytes)]
    return rows[_are_slow(context, rows)]


def _are_in(context: RuleContext, rows: Rows, kind: str) -> Mask:
    types = context.search.each_argument(rows, "Input type", _type_of)
    return np.array([one == kind for one in types], np.bool_)


def _type_of(types: list[str] | None) -> str:
    """The type that the first two operands share; empty if it is another, or unknown."""
    found = {_TYPES.get(one, "") for one in (types or [""])[:2]}
    return found.pop() if len(found) == 1 else ""


def _are_slow(context: RuleContext, rows: Rows) -> Mask:
    names, which = np.unique(context.events["name"][rows], return_inverse=True)
    flops = np.bincount(which, context.measures.roofline(rows).flops, len(names))
    time = np.bincount(which, context.events["self_ns"][rows], len(names))
    return (flops < LOW_GFLOPS * _threads(context) * time)[which]


def _in_slow_type(context: RuleContext, kind: str, rows: Rows) -> Finding:
    time = context.events["self_ns"][rows]
    flops = context.measures.roofline(rows).flops
    known = flops > 0
    rate = flops[known].sum() / max(time[known].sum(), 1)
    runs = f"; products and convolutions run at {rounded(rate)} GFLOP/s" if known.any() else ""
    spent = context.measures.per_step(time.sum())
    return context.finding(
        f"Products in {kind} are slow on this CPU, {rounded(spent)} ms per step. It has no fast "
        f"instructions for {kind}{runs}.{context.main_place(rows)}",
        context.advice(ADVICE.format(kind, _INSTRUCTIONS[kind]), **LIBRARIES),
        rows,
        _gain_in_fp32(context, rows, time, np.where(known, flops, 0.5 * LOW_GFLOPS * time)),
    )


def _gain_in_fp32(context: RuleContext, rows: Rows, time: Floats, flops: Floats) -> Gain:
    rates = [rate * _threads(context) for rate in FP32_GFLOPS]
    low, assumed, high = (
        context.gains.scaled(
            rows, np.clip(flops / rate / np.maximum(time, 1), 0.0, 1.0), f"at {rate} GFLOP/s in FP32"
        )
        for rate in rates
    )
    return replace(assumed, range_ms=(low.ms, high.ms))


def _by_name(context: RuleContext, rows: Rows) -> Finding:
    name = context.search.name(int(rows[np.argmax(context.events["duration_ns"][rows])]))
    return context.finding(
        f"{name} is a slow fallback of the library, {rounded(context.measures.ms(rows))} ms per "
        f"step.{context.main_place(rows)}",
        _OTHER if context.measures.has_device else _OTHER_ON_CPU,
        rows,
        context.gains.scaled(rows, 0.5, "if a fast one took half as long"),
    )
