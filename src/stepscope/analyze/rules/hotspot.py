"""`hotspot`: one kernel or operator takes a large share of the step (DEEPCONTEXT 4.3, 1)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext, glob
from stepscope.base.arrays import Rows
from stepscope.base.kernel_names import short_kernel
from stepscope.facts.annotate.device.collectives import is_communication_wait
from stepscope.facts.annotate.jax.calls import is_wait


class Remedy(NamedTuple):
    """Advice for kernels and operators whose names match.

    `jax` and `inference` if it differs there; `inside`: names of what most of them must be part of.
    """

    pattern: str
    advice: str
    jax: str = ""
    inside: str = ""
    inference: str = ""


# The first that matches counts.
REMEDIES = (
    Remedy(
        r"::(bernoulli_|rand_like|rand|uniform_)$",
        "Dropout draws these random masks. Where the model does as well with less dropout, lower "
        "it or set it to 0: without it nothing is drawn, nor saved for backward.",
        inside=r"dropout|scaled_dot_product",
        inference="Dropout draws these random masks, which inference does not need: call model.eval() first.",
    ),
    Remedy(
        r"::(uniform_|normal_|trunc_normal|bernoulli_|random_|exponential_|erfinv_?|randn?|randint)$",
        "Initialize weights once, before the training loop. Draw noise and masks in the data "
        "loader's workers, or on the device.",
        inference="Draw all random numbers of an iteration in one call, on the device.",
    ),
    Remedy(
        r"(?i)soft_?max",
        "In attention use F.scaled_dot_product_attention, which does not write the softmax to "
        "memory; in a loss use F.cross_entropy.",
        "In attention use jax.nn.dot_product_attention, which need not write the softmax to "
        "memory; in a loss use optax.softmax_cross_entropy_with_integer_labels.",
    ),
    Remedy(
        r"(?i)(?<![a-z])(radix|bitonic)?_?(sort|topk|unique)",
        "Sort fewer elements, or sort once for several steps; a mask or a running maximum may be enough.",
    ),
    Remedy(
        r"(?i)(?<![a-z])(cumsum|cumprod|scan)",
        "Check whether a reduction is enough, or a product with a triangular matrix.",
    ),
    Remedy(
        r"(?i)(?<![a-z])(copy|clone|contiguous|transpose)|CatArray|(?<![a-z])cat(?![a-z])",
        "Remove copies that are not needed: write into a preallocated tensor (out=, slices), keep "
        "one layout, avoid .contiguous().",
        "Remove copies that are not needed: donate buffers that a step replaces (jax.jit with "
        "donate_argnums). Update in place with .at[…].set under jax.jit, keep one layout.",
    ),
    Remedy(
        r"",
        "Check whether it is needed, whether it processes more than necessary, and whether a "
        "faster equivalent exists.",
    ),
)
BESIDES = 0.1  # of a call: memory that it takes and returns (benchmarks/advice.py: 1.05 and 1.2 times)
LEAST = 0.15  # of the step, for one name
MOST_FINDINGS = 3  # names
_CLONE = re.compile(r"\s*\[clone [^\]]*\]|\.kd$")  # what compilers append
_EXPECTED_NAMES = re.compile(
    r"(?i)_rnn|rnn_|rnncell|lstm|gru_|_gru"
    r"|^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-|psum)"  # XLA on a CPU
    r"|^(CUDA|HIP) graph$|^enumerate\(|^ProfilerStep|Synchronize$"  # containers, and waits
)
EXPECTED = ("gemm", "convolution", "attention", "communication", "optimizer")


def hotspot(context: RuleContext) -> Iterator[Finding]:
    """A kernel (on a CPU, an operator) that takes 15 % of the step or more.

    Silent about matrix products, convolutions, attention and recurrent layers, which are the work
    of a network, and about the optimizer and communication, which have rules of their own. Waits,
    and names that stand for unknown work such as a whole CUDA graph, are none.

    Source: DEEPCONTEXT section 4.3, "Hotspot Identification"; section 6.5 on what is expected.
    """
    rows = (
        context.search.find(category=("kernel", "memcpy", "memset"), on_device=True)
        if context.measures.has_device
        else context.search.find(category="cpu_op")
    )
    time = context.events["self_ns"][rows]  # not of what a loop or a program on the device contains
    kinds = context.events.text("kind").mask(*EXPECTED)[rows]
    kinds |= context.events.text("name").where(_is_expected)[rows]
    spent = np.bincount(context.events["name"][rows[~kinds]], time[~kinds])
    for code in np.argsort(-spent)[:MOST_FINDINGS].tolist():
        chosen = rows[(context.events["name"][rows] == code) & ~kinds]
        if context.measures.share(chosen, own=True) < LEAST:
            continue
        chosen = context.search.outermost(chosen)  # an operator may call its other overload
        name = context.events.text("name").values[code]
        yield context.finding(
            f"{short_kernel(name, 50)} takes {context.measures.part_of_step(chosen):.0%} of the step. "
            f"It runs {context.times(chosen)} per step.{context.main_place(chosen)}",
            _advice(context, name, chosen),
            chosen,
            _gain(context, chosen, name),
        )


def _is_expected(name: str) -> bool:
    return bool(_EXPECTED_NAMES.search(name)) or is_wait(name) or is_communication_wait(name)


def _gain(context: RuleContext, rows: Rows, name: str) -> Gain:
    """The gain if they took half as long; at most all of the calls that they are part of."""
    half = _with_factor(context, rows, name, 0.5, "if it took half as long")
    gone = _with_factor(context, rows, name, 0.0, "").ms
    if not context.measures.has_device:
        gone = min((1 + BESIDES) * context.eager.ms(context.eager.around(rows)), context.measures.steady_ms)
    return replace(half, range_ms=(0.0, max(gone, half.ms)))


def _with_factor(context: RuleContext, rows: Rows, name: str, factor: float, note: str) -> Gain:
    key = "name" if context.measures.has_device else "operator"
    change = f"scale:select={key}={glob(name)},factor={factor:g}"
    gain = context.gains.reproduced(context.gains.scaled(rows, factor, note), change)
    return gain.at_most((1 - factor) * context.measures.cost_ms(rows))


def _advice(context: RuleContext, name: str, rows: Rows) -> str:
    fits = (
        one
        for one in REMEDIES
        if re.search(one.pattern, _CLONE.sub("", name)) and _are_inside(context, rows, one.inside)
    )
    found = next(fits)
    return context.by_framework(found.advice, jax=found.jax or found.advice, inference=found.inference)


def _are_inside(context: RuleContext, rows: Rows, pattern: str) -> bool:
    """Whether most of `rows` are part of an event whose name matches; true without a pattern."""
    if not pattern:
        return True
    return bool(context.search.within(context.search.find(pattern))[rows].mean() > 0.5)
