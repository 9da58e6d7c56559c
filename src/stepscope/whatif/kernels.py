"""Which kernels are bound by what, and in which precision they compute, by kind and by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph, select
from stepscope.roofline.precision import is_half, is_tf32

Mask = NDArray[np.bool_]
_COMPUTE = ("gemm", "convolution", "attention")


def compute_bound(graph: Graph) -> Mask:
    """Kernels of matrix products, convolutions and attention, bool, shape (tasks,)."""
    kinds = graph.tasks.text("kind").mask(*_COMPUTE)
    return kinds & select(graph, category="kernel", on_device=True)


def memory_bound(graph: Graph) -> Mask:
    """All other kernels."""
    return select(graph, category="kernel", on_device=True) & ~compute_bound(graph)


def in_half(graph: Graph) -> Mask:
    """Tasks whose name tells of 16 bits."""
    return graph.tasks.text("name").where(is_half)


def in_tf32(graph: Graph) -> Mask:
    """Tasks whose name tells of TF32."""
    return graph.tasks.text("name").where(is_tf32)
