"""Which operators of a step's forward pass its backward pass runs again (checkpointing)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
_LEAST_ALIKE = 0.5


def repeated_rows(names: NDArray[np.integer], nodes: Rows, forward: Rows, again: Rows) -> Rows:
    """The forward operator that each recomputed operator of the same step repeats.

    Autograd runs pieces of the forward pass again, the last piece first. Each is found by the names
    of its operators, at the last place in the pass where most of them agree.

    Args:
        names: a number for the name of each event, shape (events,).
        nodes: event ids of gradient nodes, ascending; pieces lie between them.
        forward: event ids of the outermost forward operators of a step, in order.
        again: the same of recomputed ones.

    Returns:
        An event id for each of `again`, or -1, shape (len(again),).
    """
    result = np.full(len(again), -1, np.intp)
    done = np.searchsorted(nodes, again)
    for piece in np.split(np.arange(len(again)), np.flatnonzero(np.diff(done)) + 1):
        start, alike = _place(names[forward], names[again[piece]])
        if alike.mean() >= _LEAST_ALIKE:
            first, last = np.flatnonzero(alike)[[0, -1]]
            result[piece[first : last + 1]] = forward[start + first : start + last + 1]
            forward = forward[: start + first]
    return result


def _place(names: NDArray[np.integer], piece: NDArray[np.integer]) -> tuple[int, Mask]:
    """Where in `names` most of `piece` agrees, the last of such places, and which of it does.

    The piece may begin before the first of `names` and end after the last.
    """
    edge = np.full(len(piece), -2)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([edge, names, edge]), len(piece)
    )
    alike = windows == piece
    count = alike.sum(axis=1)
    start = len(count) - 1 - int(count[::-1].argmax())
    return start - len(piece), alike[start]
