"""How many operations each piece of work of a step computes, and how many bytes it moves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.roofline.operators import Operators
from stepscope.trace.schema import KERNEL_KINDS
from stepscope.trace.trace import Trace

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
Rows = NDArray[np.integer]
PRODUCTS = tuple(KERNEL_KINDS.index(kind) for kind in ("gemm", "convolution", "attention"))


class Pieces(NamedTuple):
    """The work of some pieces, each of shape (n,).

    Attributes:
        flops: operations, float64; nan where not known.
        bytes: bytes read and written, float64; nan where not known.
        width: bytes an element of what is multiplied, int8; 0 where not known.
        products: matrix products, convolutions and attention, bool.
    """

    flops: Floats
    bytes: Floats
    width: NDArray[np.int8]
    products: Mask


def work_of_pieces(trace: Trace, rows: Rows, time_ns: NDArray[np.int64]) -> Pieces:
    """The work of kernels, or of operators where there is no device.

    A piece does the work of the innermost operator around it, or around its launch, whose work is
    known. Of several pieces of one operator each does its share by time; where one of them is a
    product, the operations are its own. Without a device, an operator around a product does none
    of its own; with one, what it launches itself is the rest of its work.

    Args:
        trace: an annotated trace.
        rows: events.id, shape (n,).
        time_ns: how long each takes, shape (n,); of an operator without those inside it.
    """
    operators, caller = Operators.of(trace), launch_of(trace)[rows]
    operator = operators.known_around(np.where(caller >= 0, caller, rows))
    products = np.isin(trace.events["kind"][rows], PRODUCTS)
    time = np.maximum(time_ns, 1).astype(np.float64)
    own = operator[(operator >= 0) & (caller < 0)]
    around = (caller < 0) & np.isin(rows, operators.around_products(own))
    flops = np.where(around, 0, np.append(operators.flops, np.nan)[operator])
    return Pieces(
        flops * share_of_operator(operator, time, products),
        np.append(operators.bytes, np.nan)[operator] * share_of_operator(operator, time),
        np.append(operators.width, np.int8(0))[operator],
        products,
    )


def share_of_operator(operator: Rows, time: Floats, prefer: Mask | None = None) -> Floats:
    """Each piece's part of its operator's time; only of the preferred, where there are any.

    Args:
        operator: of each piece, -1 for none, shape (n,).
        time: of each piece, shape (n,).
        prefer: pieces, bool, shape (n,).
    """
    count = int(operator.max(initial=-1)) + 2
    if prefer is not None:
        some = np.bincount(operator[prefer] + 1, minlength=count) > 0
        time = np.where(some[operator + 1] & ~prefer, 0, time)
    total = np.bincount(operator + 1, time, count)
    return np.asarray(time / np.maximum(total[operator + 1], 1e-9), np.float64)
