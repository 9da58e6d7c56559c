"""`unfused_attention`: attention written out as products and a softmax."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.models.whatif.parts.fused_attention import LARGEST_HEAD, NEAR

CAUSE = "attention"
_SOFTMAX = r"^aten::_?(safe_)?softmax$"
_PRODUCT = r"^aten::(bmm|baddbmm|matmul|einsum)$"
_MATH = r"^aten::_scaled_dot_product_attention_math$"
_FUSED = r"^aten::_scaled_dot_product_(flash|efficient|cudnn|fused)\w*$"
ADVICE = "Use F.scaled_dot_product_attention, which does not write the attention matrix to memory."
OF_PYTORCH = (
    "Call nn.MultiheadAttention with need_weights=False. It then uses "
    "F.scaled_dot_product_attention, which does not write the attention matrix to memory."
)
JAX = (
    "Use jax.nn.dot_product_attention(…, implementation='cudnn') on float16 or bfloat16, which does not "
    "write the attention matrix to memory."
)
FALLS_BACK = (
    "F.scaled_dot_product_attention falls back to its math kernel. Use float16 or bfloat16, a head "
    "dimension of at most 256, is_causal=True instead of a mask where possible, and equal shapes "
    "of query and key."
)
NEEDED_ON_A_CPU = (
    "F.scaled_dot_product_attention falls back to its math kernel. On a CPU the fused kernel needs "
    "tensors of 4 dimensions whose last is contiguous, one head dimension for query, key and "
    "value, and a mask that needs no gradient."
)
NO_DROPOUT_ON_A_CPU = (
    "F.scaled_dot_product_attention falls back to its math kernel because of dropout. The fused kernel for "
    "CPUs does not have it. Set the dropout of the attention to 0, or keep it outside of the attention."
)
LIBRARIES = {
    "transformers": "Load the model with attn_implementation='sdpa' (or 'flash_attention_2').",
    "timm": "Enable timm's fused attention: timm.layers.set_fused_attn(True).",
}


def unfused_attention(context: RuleContext) -> Iterator[Finding]:
    """Attention that writes its matrix of scores to memory: product, softmax, product.

    Silent below 5 % of the step, and if the softmax is not between two batched products. In a
    program of XLA if no kernels lie between batched products with the sizes of attention.
    """
    if context.context_trace:
        return
    if context.is_jax:
        yield from _compiled(context)
        return
    around, products = _softmax_and_products(context)
    falls_back = context.search.find(_MATH)
    rows = context.search.with_backward(context.search.outermost(np.union1d(around, falls_back)))
    measures = context.measures
    if not len(rows) or measures.is_small(spent := measures.per_step(measures.caused_ns(rows).sum())):
        return
    yield context.finding(
        f"Attention writes its matrix of scores to memory, {rounded(spent)} ms per step. That is softmax "
        f"and the elementwise work around it.{context.main_place(_work(context, rows))}",
        _why(context, falls_back) if len(falls_back) else _instead(context, rows),
        _work(context, rows),
        _gain(context, rows, products if not len(falls_back) else None),
    )


def _compiled(context: RuleContext) -> Iterator[Finding]:
    """Kernels of a program of XLA between the scores of attention and their product with values."""
    rows = _between_batched_products(context)
    spent = context.measures.ms(rows)
    if not len(rows) or context.measures.is_small(spent):
        return
    yield context.finding(
        f"Attention writes its matrix of scores to memory, {rounded(spent)} ms per step. The kernels "
        f"between its products take that time.{context.main_place(rows)}",
        JAX,
        rows,
        context.gains.scaled(rows, 0.0, "at most: a fused kernel that computes the softmax in passing"),
    )


def _between_batched_products(context: RuleContext) -> Rows:
    """Kernels after a batch of (L, d) times (d, L), before one whose inner size is L."""
    rows = context.search.find(on_device=True, category="kernel")
    sizes = [_batched_sizes(arguments) for arguments in context.trace.arguments_of(rows)]
    products = [place for place, size in enumerate(sizes) if size is not None]
    chosen = np.zeros(len(rows), np.bool_)
    for first, last in itertools.pairwise(products):
        scores, values = sizes[first], sizes[last]
        if scores and values and last - first <= NEAR and _is_attention(scores, values):
            chosen[first + 1 : last] = True
    return rows[chosen]


def _batched_sizes(arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Rows, inner size and columns of a product, () of a single one; None if there is none."""
    text = str(arguments.get("product_sizes", ""))
    if not text:
        return None
    sizes = tuple(int(size) for size in text.split("x"))
    single = float(arguments.get("product_flops_from_shapes") or 0) < 4 * np.prod(sizes, dtype=float)
    return () if single or len(sizes) != 3 else sizes


def _is_attention(scores: tuple[int, ...], values: tuple[int, ...]) -> bool:
    length, head, columns = scores
    fits = values[1] == length and length in (values[0], values[2])
    return length == columns and head < length and head <= LARGEST_HEAD and fits


def _gain(context: RuleContext, rows: Rows, products: Rows | None) -> Gain:
    """As `stepscope whatif sdpa` has it; without sizes, the softmax and what is around it.

    A fused kernel multiplies as well, so at most it saves the products, too; None where they are not
    written out.
    """
    if products is None:
        return context.gains.scaled(rows, 0.0, "at most: a fused kernel that computes the softmax in passing")
    whole = context.search.outermost(np.union1d(rows, context.search.with_backward(products)))
    found = context.gains.whatif("sdpa") if context.measures.has_device else None
    if found is not None:
        return found.at_most(context.measures.cost_ms(whole))
    gain = context.gains.scaled(rows, 0.0, "without the softmax and all around it; at most the products too")
    return replace(gain, range_ms=(0.0, max(gain.ms, context.gains.scaled(whole).ms)))


def _instead(context: RuleContext, rows: Rows) -> str:
    modules = context.events["module"][rows]
    classes = context.trace["modules"].text("class").take(modules[modules >= 0])
    of_pytorch = len(classes) > 0 and bool(classes.mask("MultiheadAttention").all())
    return OF_PYTORCH if of_pytorch else context.advice(ADVICE, **LIBRARIES)


def _why(context: RuleContext, falls_back: Rows) -> str:
    if context.measures.has_device:
        return FALLS_BACK
    drops = len(context.search.find(r"^aten::(native_)?dropout$", inside=falls_back)) > 0
    return NO_DROPOUT_ON_A_CPU if drops else NEEDED_ON_A_CPU


def _work(context: RuleContext, rows: Rows) -> Rows:
    work = context.search.find(inside=rows, on_device=True)
    return work if len(work) else rows


def _softmax_and_products(context: RuleContext) -> tuple[Rows, Rows]:
    """What is between the two batched products of attention, softmax included; and these products."""
    every, batched = (context.search.find(name, category="cpu_op") for name in (_SOFTMAX, _PRODUCT))
    if not len(every) or not len(batched):  # spares a large trace the search for innermost operators
        return every[:0], batched[:0]
    operators = _products_and_leaves(context)
    softmax, product = np.isin(operators, every), np.isin(operators, batched)
    around, ends = np.zeros((2, len(operators)), np.bool_)
    products = np.flatnonzero(product)
    for at in np.flatnonzero(softmax).tolist():
        place = int(np.searchsorted(products, at))
        if 0 < place < len(products):
            first, last = int(products[place - 1]), int(products[place])
            if at - first <= NEAR and last - at <= NEAR:
                around[first + 1 : last] = True
                ends[[first, last]] = True
    return operators[around], operators[ends]


def _products_and_leaves(context: RuleContext) -> Rows:
    """Batched products, which may copy a mask or an operand first, and the innermost operators outside."""
    search = context.search
    products = search.outermost(search.find(_PRODUCT, category="cpu_op"))
    leaves = search.innermost_operators(search.find(category="cpu_op"))
    return np.union1d(products, leaves[~search.within(products)[leaves]])
