"""Which kernels are bound by what, and in which precision they compute, by kind and by name."""

from __future__ import annotations

import re
from functools import lru_cache

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
    return graph.tasks.text("name").where(_is_half)


def in_tf32(graph: Graph) -> Mask:
    """Tasks whose name tells of TF32."""
    return graph.tasks.text("name").where(_is_tf32) & ~in_half(graph)


@lru_cache(maxsize=1 << 16)
def _is_half(name: str) -> bool:
    return bool(_HALF.search(name))


@lru_cache(maxsize=1 << 16)
def _is_tf32(name: str) -> bool:
    return bool(_TENSOR.search(name))
