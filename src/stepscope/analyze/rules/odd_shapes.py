"""`odd_shapes`: matrix products whose sizes do not suit tensor cores."""

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Floats, Rows
from stepscope.base.numbers import rounded

_PRODUCT = r"^aten::(mm|addmm|bmm|baddbmm)$"
_HALF = ("c10::Half", "c10::BFloat16", "at::Half", "at::BFloat16")
_HALF_BYTES = 2  # per element
LEAST_SIZE = 16  # below, padding does not pay
REACHED = 0.5  # of the roofline: what products of suitable sizes easily reach
STRIDES = "Input Strides"
_UNALIGNED = re.compile(r"align[12](?!\d)")


def odd_shapes(context: RuleContext) -> Iterator[Finding]:
    """16-bit matrix products with matrices whose lines have a length that is not a multiple of 8.
    How many lines a matrix has does not matter. Where strides were not recorded, rows are lines.

    Silent if shapes or types were not recorded, in 32 bits, on a CPU or a GPU of AMD, and for sizes
    below 16, where padding does not pay.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, section 4.1 "Tensor Core
    Requirements": sizes in multiples of 16 bytes.
    """
    of_amd = str(context.measures.device_facts().get("name")).startswith("AMD")
    if of_amd or not context.measures.has_device:
        return
    odd = _odd_kernels(context) if context.is_jax else _odd_operators(context)
    chosen = np.array(list(odd), np.int64)
    work = context.search.find(inside=chosen, on_device=True, category="kernel")
    sizes = sorted({size for found in odd.values() for size in found})
    if not len(work):
        return
    listed = ", ".join(map(str, sizes[:4])) + (", …" if len(sizes) > 4 else "")
    factor = _factor(context, work)
    yield context.finding(
        f"{rounded(context.measures.calls(chosen), 4)} 16-bit matrix products per step have sizes not "
        f"divisible by 8. The sizes are {listed}; the products take {rounded(context.measures.ms(work))} ms.",
        "Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.",
        work,
        context.gains.scaled(work, factor, "if they ran at the rate that suitable sizes reach"),
    )


def _odd_operators(context: RuleContext) -> dict[int, list[int]]:
    search = context.search
    rows = search.find(_PRODUCT, category="cpu_op")
    types = search.each_argument(rows, "Input type", lambda types: {*_HALF} & {*(types or ())})
    halves = rows[np.array(types, np.bool_)]
    sizes = search.each_shapes(halves, lambda shapes: [shape[-1] for shape in _matrices(shapes)])
    strides = search.each_shapes(halves, lambda steps: [max(one[-2:]) for one in _matrices(steps)], STRIDES)
    lines = ([*of, *own[-1:]] if of else own for own, of in zip(sizes, strides, strict=True))
    return {row: odd for row, each in zip(halves.tolist(), lines, strict=True) if (odd := _odd(each))}


def _odd_kernels(context: RuleContext) -> dict[int, list[int]]:
    rows, odd = context.search.find(on_device=True, kind="gemm"), {}
    for row, arguments in zip(rows.tolist(), context.trace.arguments_of(rows), strict=True):
        sizes = [int(size) for size in str(arguments.get("product_sizes", "")).split("x") if size]
        if arguments.get("operand_bytes") == _HALF_BYTES and (found := _odd(sizes[1:])):
            odd[row] = found
    return odd


def _factor(context: RuleContext, work: Rows) -> Floats:
    """The time of each product at the rate of suitable sizes, as a share of its own time.

    The rate is `REACHED` of the roofline, where the device and the shapes are known; products
    that reach it gain nothing. Else only kernels whose names show unaligned access gain.
    """
    time = context.events["duration_ns"][work].astype(np.float64)
    bound = context.measures.roofline(work).least_ns
    reachable = np.where(np.isnan(bound), time, bound / REACHED)
    unaligned = context.events.text("name").where(lambda name: bool(_UNALIGNED.search(name)))[work]
    reachable = np.where(np.isnan(bound) & unaligned, time / 2, reachable)
    return np.clip(reachable / np.maximum(time, 1), 0.0, 1.0)


def _matrices(shapes: list[list[int]]) -> list[list[int]]:
    return [shape for shape in shapes if len(shape) in (2, 3)]


def _odd(sizes: list[int]) -> list[int]:
    return sorted({size for size in sizes if size % 8 and size >= LEAST_SIZE})
