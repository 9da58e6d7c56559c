"""Which functions of a model without classes are modules: those that the user's loss calls.

A plain JAX model is functions that call each other: `model` calls `attention` calls `linear`. What
encloses every differentiated operation (the training step, the loss function) is no module.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np

from stepscope.annotate.names.origin_frames import is_users
from stepscope.arrays import Ids
from stepscope.trace.table import Table


def function_names(frames: Table, outer: Ids, used: Ids) -> list[str]:
    """The name of the module that each frame begins, empty if none.

    Args:
        frames: the trace's table of Python frames.
        outer: the frame around each one within its compiled function, -1 at the outermost.
        used: the frames of all differentiated operations.
    """
    names = [name.rpartition(".")[2] for name in (text or "" for text in frames.text("function"))]
    files = [file or "" for file in frames.text("file")]
    chains = [_chain(row, outer) for row in np.unique(used).tolist()]
    around = _depth_of_all([[(names[row], files[row]) for row in chain] for chain in chains])
    inner = {row for chain in chains for row in chain[around:]}
    return [
        name if row in inner and is_users(files[row]) and name.isidentifier() else ""
        for row, name in enumerate(names)
    ]


def _chain(row: int, outer: Ids) -> list[int]:
    """A frame and those around it, the outermost first."""
    chain: list[int] = []
    while row >= 0:
        chain.append(row)
        row = int(outer[row])
    return chain[::-1]


def _depth_of_all(chains: list[list[tuple[str, str]]]) -> int:
    """How many of the outermost functions all chains share."""
    levels = zip(*chains, strict=False)
    return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))
