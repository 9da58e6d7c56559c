"""Which operators of backward repeat forward work, as activation checkpointing does."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.autograd_marks import is_backward, is_forward
from stepscope.arrays import Ids32, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.table import Table


def recomputed(events: Table, in_backward: Mask) -> Mask:
    """Operators that autograd records while it runs backward, but no gradients of `create_graph`.

    Gradients are not recorded, so a node that repeats forward work also runs operators that are
    not. With `create_graph=True`, as in a gradient penalty, all operators of a node are recorded.

    Args:
        events: all events.
        in_backward: which of them run in backward.
    """
    recorded = is_forward(events) & in_backward
    if not recorded.any():
        return recorded
    nodes = is_backward(events)
    node = _innermost(events, nodes)
    caller = _caller(events)
    plain = ~recorded & ~nodes & (caller >= 0) & nodes[caller]
    repeats = np.bincount(caller[plain], minlength=len(events)) > 0
    result: Mask = recorded & ((node < 0) | repeats[node])
    return result


def _caller(events: Table) -> Ids32:
    """The operator that calls each operator, or -1; -1 for other events."""
    operators = events.text("category").mask("cpu_op")
    above = np.append(_innermost(events, operators), np.int32(-1))[events["parent"]]
    return np.where(operators, above, np.int32(-1))


def _innermost(events: Table, chosen: Mask) -> Ids32:
    """The innermost of some events around each event, itself included, or -1."""
    return inherit(events["parent"], np.where(chosen, np.arange(len(events)), -1))
