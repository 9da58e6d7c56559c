"""`one_hot_product`: one-hot rows times a weight, where a lookup gives the same."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.schema import MODEL_STAGES

_PRODUCT = r"^aten::(linear|matmul|mm|addmm)$"
_CONVERSION = r"^aten::(to|_to_copy)$"  # one_hot returns integers
# A lookup reads its rows, and writes a gradient of the whole weight, too.
KEPT = 0.3  # of the time, at most
_ENCODES = "jit(_one_hot)"  # in the scope of what jax.nn.one_hot makes, and of nothing else
_SAME = 1.1  # times the bytes of the rows: a step of XLA also reads their indices
ADVICE = (
    "Look the rows up: nn.Embedding(classes, width) in place of the Linear layer, or "
    "F.embedding(indices, weight.t())."
)
WHY = "one-hot rows, their product, and its gradient"
JAX = "Look the rows up: weight[indices] (or jnp.take) in place of jax.nn.one_hot(indices, n) @ weight."


def one_hot_product(context: RuleContext) -> Iterator[Finding]:
    """One-hot rows of indices that are multiplied with a weight: an embedding lookup by other means.

    Silent below 5 % of the step, where shapes are not recorded, where the rows have other
    features, too, and where XLA makes them within the product.
    """
    rows = _compiled_lookups(context) if context.is_jax else _lookups(context)
    if not len(rows) or context.measures.is_small(spent := context.measures.longer_side_ms(rows)):
        return
    yield context.finding(
        f"One-hot rows are multiplied with a weight, {rounded(spent)} ms per step.{context.main_place(rows)}",
        context.by_framework(ADVICE, jax=JAX),
        rows,
        _gain(context, rows),
    )


def _gain(context: RuleContext, rows: Rows) -> Gain:
    if context.is_jax and not context.measures.has_device:  # XLA's threads run beside the loop's
        return context.gains.bound(context.measures.elapsed_ms(rows), WHY, sure=1 - KEPT)
    gain = context.gains.scaled(rows, 0.0, WHY)
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


def _compiled_lookups(context: RuleContext) -> Rows:
    """The same in programs of XLA: what jax.nn.one_hot makes, products that read as much, their gradients.

    A gradient has the sizes of the rows, too, and is no product of them in a loss: only products of
    the forward pass show a lookup.
    """
    search, scope, step = context.search, context.events.text("scope"), context.events["step"]
    rows = search.find(category=("cpu_op", "kernel"))
    made = rows[scope.where(lambda name: _ENCODES in name)[rows]]
    if not len(made):
        return made
    written = np.array(search.each_argument(made, "bytes_from_shapes", lambda value: float(value or 0)))
    read = np.array([_read_bytes(one) for one in context.trace.arguments_of(rows)])
    products, read = rows[read > 0], read[read > 0][:, None]
    fits = (step[products][:, None] == step[made]) & (read <= written) & (written <= _SAME * read)
    used = fits[~scope.where(lambda name: "transpose(" in name)[products]].any(axis=0)
    return search.outermost(np.union1d(made[used], products[fits[:, used].any(axis=1)]))


def _read_bytes(arguments: dict[str, Any]) -> float:
    """The bytes of the left operand of a single product; 0 for others."""
    sizes = [int(size) for size in str(arguments.get("product_sizes") or "").split("x") if size]
    single = float(arguments.get("product_flops_from_shapes") or 0) == 2 * prod(sizes)
    width = float(arguments.get("operand_bytes") or 0)
    return sizes[0] * sizes[1] * width if single and len(sizes) == 3 else 0.0
