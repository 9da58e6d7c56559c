"""In which precision a product is computed: by its inputs, and by the name of its kernel."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepscope.trace.table import Text

PRECISIONS = ("half", "tf32", "fp32")
_CODES = (*PRECISIONS, "")

# cuBLAS of CUDA 12 and later names input, accumulator and output: nvjet_hsh_…, nvjet_tst_….
_HALF = re.compile(
    r"bf16|f16|half|bfloat|hgemm|[hs]884|[hs]16816|h1688|nvjet_(sm\d+_)?[ht]s[a-z]_", re.IGNORECASE
)
_TENSOR = re.compile(r"tf32|s1688|nvjet_(sm\d+_)?s[a-z]{2}_", re.IGNORECASE)


def precisions(kernels: Text, width: NDArray[np.integer]) -> Text:
    """`half`, `tf32`, `fp32` or nothing for each product.

    What its operator was given tells more than a kernel's name. The rates of 8 and of 64 bits are
    not known, so these are nothing.

    Args:
        kernels: names, shape (n,).
        width: bytes an element of what the operator multiplies, shape (n,); 0 where not known.
    """
    half, tf32, fp32, unknown = range(len(_CODES))
    by_name = [_CODES.index(_by_name(name)) for name in kernels.values]
    named = np.array([*by_name, unknown], np.int8)[kernels.codes]
    given = np.where(named == tf32, tf32, fp32)
    told = np.select([width == 2, width == 4, width > 0], [half, given, unknown], named)
    return Text(told.astype(np.int8), _CODES)


@lru_cache(maxsize=1 << 16)
def is_half(name: str) -> bool:
    """Whether a kernel's name tells of 16 bits."""
    return bool(_HALF.search(name))


@lru_cache(maxsize=1 << 16)
def is_tf32(name: str) -> bool:
    """Whether a kernel's name tells of TF32."""
    return bool(_TENSOR.search(name)) and not is_half(name)


def _by_name(name: str) -> str:
    return "half" if is_half(name) else "tf32" if is_tf32(name) else "fp32"
