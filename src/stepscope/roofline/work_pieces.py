"""Operations and bytes of each kernel of a step, or of each operator without a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.links.launches import launch_of
from stepscope.arrays import Codes8, Floats, IntArray, Mask, Times
from stepscope.roofline.operator_work import Operators
from stepscope.roofline.rates import PRECISIONS, precisions
from stepscope.trace.schema import KERNEL_KINDS, OPERATIONS, PRODUCT_KINDS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

PRODUCTS = tuple(KERNEL_KINDS.index(kind) for kind in PRODUCT_KINDS)


class WorkPieces(NamedTuple):
    """The work of kernels or operators, arrays of shape (n,).

    Attributes:
        flops: operations, float64; nan if unknown.
        bytes: bytes read and written, float64; nan if unknown.
        width: bytes per element of a product's operands, int8; 0 if unknown.
        products: matrix products, convolutions and attention, bool.
        origin: where the operations of XLA's instructions come from: XLA, SHAPES or NO_ORIGIN.
    """

    flops: Floats
    bytes: Floats
    width: Codes8
    products: Mask
    origin: Codes8


def work_of_pieces(trace: Trace, rows: IntArray, time_ns: Times) -> WorkPieces:
    """The work of kernels, or of operators if there is no device.

    A kernel does the work of the innermost operator with known work around its launch, or of its
    own instruction, which XLA records. Several
    kernels of one operator share its work by time; if one of them is a product, it gets all
    operations. Without a device, an operator around a product has no further operations; with a
    device, the kernels that it launches itself do the rest of its work.

    Args:
        trace: an annotated trace.
        rows: events.id, shape (n,).
        time_ns: duration of each, shape (n,); for operators, without nested operators.
    """
    operators, caller = Operators.of(trace), launch_of(trace)[rows]
    operator = operators.of_work(rows, caller)
    products = np.isin(trace.events["kind"][rows], PRODUCTS)
    time = np.maximum(time_ns, 1).astype(np.float64)
    own = operator[(operator >= 0) & (caller < 0)]
    around = (caller < 0) & np.isin(rows, operators.around_products(own))
    flops = np.where(around, 0, np.append(operators.flops, np.nan)[operator])
    return WorkPieces(
        flops * share_of_operator(operator, time, products),
        np.append(operators.bytes, np.nan)[operator] * share_of_operator(operator, time),
        np.append(operators.width, np.int8(0))[operator],
        products,
        np.append(operators.origin, np.int8(0))[operator],
    )


def share_of_operator(operator: IntArray, time: Floats, prefer: Mask | None = None) -> Floats:
    """Each kernel's share of its operator's time; only preferred kernels, if there are any.

    Args:
        operator: operator of each kernel, -1 for none, shape (n,).
        time: time of each kernel, shape (n,).
        prefer: preferred kernels, bool, shape (n,).
    """
    count = int(operator.max(initial=-1)) + 2
    if prefer is not None:
        some = np.bincount(operator[prefer] + 1, minlength=count) > 0
        time = np.where(some[operator + 1] & ~prefer, 0, time)
    total = np.bincount(operator + 1, time, count)
    return np.asarray(time / np.maximum(total[operator + 1], 1e-9), np.float64)


def with_operations(trace: Trace) -> Trace:
    """The trace with the table `operations` filled, for all ranks and steps."""
    events = trace.events
    rows = np.flatnonzero(events["kind"] >= 0)
    on_device = (trace["tracks"]["device"] >= 0)[events["track"][rows]]
    time = np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows])
    pieces = work_of_pieces(trace, rows, time)
    precision = precisions(events.text("name").take(rows), pieces.width)
    codes = np.where(pieces.products & precision.mask(*PRECISIONS), precision.codes, -1)
    return trace.with_table(
        Table(
            OPERATIONS,
            {
                "event": rows,
                "flops": _whole(np.where(pieces.products, pieces.flops, np.nan)),
                "bytes": _whole(pieces.bytes),
                "precision": Text(codes, PRECISIONS),
            },
        )
    )


def _whole(values: Floats) -> NDArray[np.int64]:
    """Rounded, -1 if unknown."""
    return np.where(np.isnan(values), -1, np.rint(values)).astype(np.int64)
