"""Gradients that XLA merged with the update that takes them.

XLA moves a factor of an update into the convolution or matrix product that computes the gradient,
which then has the scope of the factor: `jit(step)/adam/mul`. An update multiplies no matrices under
such a name: its own products, as in Shampoo or Muon, are `dot_general`.
"""

from __future__ import annotations

import re

from stepscope.annotate.names.named_scopes import scope_of
from stepscope.arrays import Mask
from stepscope.trace.trace import Trace

_PRODUCTS = ("gemm", "convolution")
_ELEMENTWISE = re.compile(
    r"^(add|sub|mul|div|neg|max|min|select_n|integer_pow|square|sqrt|convert_element_type|transpose"
    r"|reshape|squeeze|broadcast_in_dim)$"
)


def merged_gradients(trace: Trace) -> Mask:
    """Products under the name of an elementwise operation, outside both passes; (events,)."""
    products = trace.events.text("kind").mask(*_PRODUCTS)
    result: Mask = products & trace.events.text("scope").where(_is_elementwise)
    return result


def _is_elementwise(text: str) -> bool:
    scope = scope_of(text)
    return scope.stage is None and _ELEMENTWISE.match(scope.primitive) is not None
