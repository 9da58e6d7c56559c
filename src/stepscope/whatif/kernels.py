"""Which kernels are bound by what, and in which precision they compute, by kind and by name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph, select

Mask = NDArray[np.bool_]
_COMPUTE = ("gemm", "convolution", "attention")
_HALF = re.compile(r"bf16|f16|half|bfloat|hgemm|[hs]884|[hs]16816|h1688", re.IGNORECASE)
_TENSOR = re.compile(r"tf32|s1688", re.IGNORECASE)


def compute_bound(graph: Graph) -> Mask:
    """Kernels of matrix products, convolutions and attention, bool, shape (tasks,)."""
    kinds = graph.tasks.text("kind").mask(*_COMPUTE)
    return kinds & select(graph, category="kernel", on_device=True)


def memory_bound(graph: Graph) -> Mask:
    """All other kernels."""
    return select(graph, category="kernel", on_device=True) & ~compute_bound(graph)


def in_half(graph: Graph) -> Mask:
    """Tasks whose name tells of 16 bits."""
    return graph.tasks.text("name").where(lambda name: bool(_HALF.search(name)))


def in_tf32(graph: Graph) -> Mask:
    """Tasks whose name tells of TF32."""
    tf32 = graph.tasks.text("name").where(lambda name: bool(_TENSOR.search(name)))
    return tf32 & ~in_half(graph)
