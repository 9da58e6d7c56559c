"""`unfused_attention`: attention written out as products and a softmax."""

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Mask, Rows
from stepscope.facts.summary.numbers import rounded

CAUSE = "attention"
NEAR = 8  # operators between a product and the softmax: scale, mask, cast, dropout
_SOFTMAX = r"^aten::_?(safe_)?softmax$"
_PRODUCT = re.compile(r"^aten::(bmm|baddbmm|matmul|einsum)$")
_MATH = r"^aten::_scaled_dot_product_attention_math$"
_FUSED = r"^aten::_scaled_dot_product_(flash|efficient|cudnn|fused)\w*$"
ADVICE = "Use F.scaled_dot_product_attention, which does not write the attention matrix to memory."
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
    "F.scaled_dot_product_attention falls back to its math kernel because of dropout, which the "
    "fused kernel for CPUs does not have. Set the dropout of the attention to 0, or keep it "
    "outside of the attention."
)
LIBRARIES = {
    "transformers": "Load the model with attn_implementation='sdpa' (or 'flash_attention_2').",
    "timm": "Enable timm's fused attention: timm.layers.set_fused_attn(True).",
}


def unfused_attention(context: RuleContext) -> Iterator[Finding]:
    """Attention that writes its matrix of scores to memory: product, softmax, product.

    Silent below 5 % of the step, and if the softmax is not between two batched products.
    """
    if context.context_trace:
        return
    rows = _softmax_between_products(context)
    falls_back = context.search.find(_MATH)
    if len(falls_back):
        rows = context.search.outermost(np.union1d(rows, falls_back))
    rows = _with_backward(context, rows)
    if not len(rows):
        return
    spent = float(context.measures.caused_ns(rows).sum()) / 1e6 / context.step_count
    if context.measures.is_small(spent):
        return
    yield context.finding(
        f"Attention writes its matrix of scores to memory: softmax and the elementwise work around "
        f"it take {rounded(spent)} ms per step{context.main_place(_work(context, rows))}.",
        _why(context, falls_back) if len(falls_back) else context.advice(ADVICE, **LIBRARIES),
        _work(context, rows),
        _gain(context, rows, written_out=not len(falls_back)),
    )


def _gain(context: RuleContext, rows: Rows, written_out: bool) -> Gain:
    """As `stepscope whatif sdpa` has it; without sizes, the softmax and what is around it."""
    found = context.gains.whatif("sdpa") if written_out and context.measures.has_device else None
    if found is not None:
        return found
    return context.gains.scaled(rows, 0.0, "at most: a fused kernel that computes the softmax in passing")


def _why(context: RuleContext, falls_back: Rows) -> str:
    if context.measures.has_device:
        return FALLS_BACK
    drops = len(context.search.find(r"^aten::(native_)?dropout$", inside=falls_back)) > 0
    return NO_DROPOUT_ON_A_CPU if drops else NEEDED_ON_A_CPU


def _work(context: RuleContext, rows: Rows) -> Rows:
    work = context.search.find(inside=rows, on_device=True)
    return work if len(work) else rows


def _softmax_between_products(context: RuleContext) -> Rows:
    operators = context.search.innermost_operators(context.search.find(category="cpu_op"))
    softmax = np.isin(operators, context.search.find(_SOFTMAX, category="cpu_op"))
    product = _names(context, operators, _PRODUCT)
    chosen = np.zeros(len(operators), np.bool_)
    products = np.flatnonzero(product)
    for at in np.flatnonzero(softmax).tolist():
        place = int(np.searchsorted(products, at))
        if 0 < place < len(products):
            first, last = int(products[place - 1]), int(products[place])
            if at - first <= NEAR and last - at <= NEAR:
                chosen[first + 1 : last] = True
    return operators[chosen]


def _with_backward(context: RuleContext, rows: Rows) -> Rows:
    origin = context.events["forward_event"]
    back = context.search.find(stage="backward", on_device=False)
    back = back[np.isin(origin[back], np.flatnonzero(context.search.within(rows)))]
    return context.search.outermost(np.union1d(rows, back))


def _names(context: RuleContext, rows: Rows, pattern: re.Pattern[str]) -> Mask:
    return context.events.text("name").where(lambda name: bool(pattern.search(name)))[rows]
