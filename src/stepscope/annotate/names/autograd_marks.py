"""Which operators autograd records in the forward pass, and which it runs in backward."""

from __future__ import annotations

from stepscope.arrays import Mask, Rows
from stepscope.trace.table import Table


def is_backward(events: Table) -> Mask:
    """Operators that autograd runs in backward: they have the id of their forward thread."""
    result: Mask = (events["sequence"] >= 0) & (events["forward_thread"] > 0)
    return result


def is_forward(events: Table, rows: Rows | slice = slice(None)) -> Mask:
    """Operators that autograd recorded: they have a sequence number and no forward thread.

    Args:
        events: all events.
        rows: the events to look at; by default all.
    """
    result: Mask = (events["sequence"][rows] >= 0) & (events["forward_thread"][rows] <= 0)
    return result
