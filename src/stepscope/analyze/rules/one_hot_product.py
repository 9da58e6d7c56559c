"""`one_hot_product`: one-hot rows times a weight, where a lookup gives the same."""

from collections.abc import Iterator
from math import prod

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.facts.summary.numbers import rounded
from stepscope.trace.schema import MODEL_STAGES

_PRODUCT = r"^aten::(linear|matmul|mm|addmm)$"
_CONVERSION = r"^aten::(to|_to_copy)$"  # one_hot returns integers
# A lookup reads its rows, and writes a gradient of the whole weight, too.
KEPT = 0.3  # of the time, at most
ADVICE = (
    "Look the rows up: nn.Embedding(classes, width) in place of the Linear layer, or "
    "F.embedding(indices, weight.t())."
)


def one_hot_product(context: RuleContext) -> Iterator[Finding]:
    """F.one_hot of indices that is multiplied with a weight: an embedding lookup by other means.

    Silent below 5 % of the step, where shapes are not recorded, and where the rows have other
    features, too.
    """
    rows = _lookups(context)
    if not len(rows) or context.measures.is_small(spent := context.measures.longer_side_ms(rows)):
        return
    yield context.finding(
        f"One-hot rows are multiplied with a weight, {rounded(spent)} ms per step.{context.main_place(rows)}",
        ADVICE,
        rows,
        _gain(context, rows),
    )


def _gain(context: RuleContext, rows: Rows) -> Gain:
    gain = context.gains.scaled(rows, 0.0, "one-hot rows, their product, and its gradient")
    ranged = replace(gain, range_ms=((1 - KEPT) * gain.ms, gain.ms))
    return context.gains.unsure(ranged, context.search.within(rows))


def _lookups(context: RuleContext) -> Rows:
    """Calls of one_hot, the conversions of their rows, products that take these, and their gradients.

    None where no product of the step takes rows of that number and width.
    """
    search = context.search
    encodings = search.find(r"^aten::one_hot$", category="cpu_op")
    conversions = search.find(_CONVERSION, category="cpu_op", stage=MODEL_STAGES)
    conversions = np.setdiff1d(search.outermost(np.union1d(encodings, conversions)), encodings)
    products = search.outermost(search.find(_PRODUCT, category="cpu_op", stage=MODEL_STAGES))
    indices, rows, factors = (_shapes(context, of) for of in (encodings, conversions, products))
    matrices = {_matrix(one) for one in factors}
    taken = [(one[0], one[1][:-1]) in indices and _matrix(one) in matrices for one in rows]
    wide = {_matrix(one) for one, is_taken in zip(rows, taken, strict=True) if is_taken}
    heights = {matrix[:2] for matrix in wide}
    used = [(step, prod(shape)) in heights for step, shape in indices]
    products = products[np.array([_matrix(one) in wide for one in factors], np.bool_)]
    parts = encodings[np.array(used, np.bool_)], conversions[np.array(taken, np.bool_)], products
    return search.outermost(np.concatenate([*parts, search.backward_of(products)]))


def _shapes(context: RuleContext, rows: Rows) -> list[tuple[int, tuple[int, ...]]]:
    """The step of each call, and the shape of its first tensor."""
    shapes = context.search.each_shapes(rows, lambda shapes: tuple(shapes[0]) if shapes else ())
    return list(zip(context.events["step"][rows].tolist(), shapes, strict=True))


def _matrix(of: tuple[int, tuple[int, ...]]) -> tuple[int, int, tuple[int, ...]]:
    """The step of a call, and rows and columns of its first tensor as a matrix."""
    step, shape = of
    return step, prod(shape[:-1]), shape[-1:]
