"""Collectives that add up the gradients of several devices, where the program asks for that itself.

`jax.lax.pmean(gradients, "data")` in a function under `pmap` or `shard_map` is outside of what is
differentiated; but like the all-reduces that XLA adds, it is the end of the backward pass.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.named_scopes import scope_of
from stepscope.arrays import Mask
from stepscope.trace.trace import Trace

_COLLECTIVES = ("psum", "pmean", "all_reduce", "reduce_scatter", "all_gather")


def sums_gradients(trace: Trace) -> Mask:
    """Collectives that take gradients and no argument of their program, bool, shape (events,)."""
    inputs = trace["inputs"]
    of_argument = inputs.text("argument").codes >= 0
    gradients = np.setdiff1d(inputs["first"][~of_argument], inputs["first"][of_argument])
    collective = trace.events.text("scope").where(
        lambda text: scope_of(text).primitive.startswith(_COLLECTIVES)
    )
    result: Mask = collective & np.isin(trace.events["origin"], gradients)
    return result
