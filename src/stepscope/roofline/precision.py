"""The precision of a product, from its inputs and its kernel's name."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from stepscope.arrays import IntArray
from stepscope.trace.table import Text

PRECISIONS = ("half", "tf32", "fp32")
_CODES = (*PRECISIONS, "")

# cuBLAS of CUDA 12 and later names input, accumulator and output: nvjet_hsh_…, nvjet_tst_….
_HALF = re.compile(
    r"bf16|f16|half|bfloat|hgemm|[hs]884|[hs]16816|h1688|nvjet_(sm\d+_)?[ht]s[a-z]_", re.IGNORECASE
)
_TENSOR = re.compile(r"tf32|s1688|nvjet_(sm\d+_)?s[a-z]{2}_", re.IGNORECASE)


def precisions(kernels: Text, width: IntArray) -> Text:
    """`half`, `tf32`, `fp32` or null for each product.

    The operator's inputs take precedence over the kernel's name. 8-bit and 64-bit products are
    null, as their peak rates are not known.

    Args:
        kernels: names, shape (n,).
        width: bytes per element of the operands, shape (n,); 0 if unknown.
    """
    half, tf32, fp32, unknown = range(len(_CODES))
    by_name = [_CODES.index(_by_name(name)) for name in kernels.values]
    named = np.array([*by_name, unknown], np.int8)[kernels.codes]
    given = np.where(named == tf32, tf32, fp32)
    codes = np.select([width == 2, width == 4, width > 0], [half, given, unknown], named)
    return Text(codes.astype(np.int8), _CODES)


@lru_cache(maxsize=1 << 16)
def is_half(name: str) -> bool:
    """Whether a kernel's name indicates 16 bits."""
    return bool(_HALF.search(name))


@lru_cache(maxsize=1 << 16)
def is_tf32(name: str) -> bool:
    """Whether a kernel's name indicates TF32."""
    return bool(_TENSOR.search(name)) and not is_half(name)


def _by_name(name: str) -> str:
    return "half" if is_half(name) else "tf32" if is_tf32(name) else "fp32"
