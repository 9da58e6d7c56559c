"""Match recomputed operators with the forward operators they repeat (checkpointing)."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import IntArray, Mask, Rows

_MIN_EQUAL = 0.5


def repeated_rows(names: IntArray, nodes: Rows, forward: Rows, again: Rows) -> Rows:
    """The forward operator that each recomputed operator of the same step repeats.

    Autograd repeats pieces of the forward pass, the last piece first. Each piece is located by the
    names of its operators, at the last position in the pass where most of them agree.

    Args:
        names: a number for the name of each event, shape (events,).
        nodes: event ids of gradient nodes, ascending; pieces lie between them.
        forward: event ids of the outermost forward operators of a step, in order.
        again: the same for recomputed operators.

    Returns:
        An event id for each of `again`, or -1, shape (len(again),).
    """
    result = np.full(len(again), -1, np.intp)
    done = np.searchsorted(nodes, again)
    for piece in np.split(np.arange(len(again)), np.flatnonzero(np.diff(done)) + 1):
        start, equal = _position(names[forward], names[again[piece]])
        if equal.mean() >= _MIN_EQUAL:
            first, last = np.flatnonzero(equal)[[0, -1]]
            result[piece[first : last + 1]] = forward[start + first : start + last + 1]
            forward = forward[: start + first]
    return result


def _position(names: IntArray, piece: IntArray) -> tuple[int, Mask]:
    """The last position in `names` where most of `piece` agrees, and which elements agree.

    The piece may overlap either end of `names`.
    """
    edge = np.full(len(piece), -2)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([edge, names, edge]), len(piece)
    )
    equal = windows == piece
    count = equal.sum(axis=1)
    start = len(count) - 1 - int(count[::-1].argmax())
    return start - len(piece), equal[start]
