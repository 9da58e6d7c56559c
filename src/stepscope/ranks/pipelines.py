"""Pipelines of a job, from its sends and receives."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.ranks.collectives import Matched


def pipeline_places(matched: Matched, ranks: int) -> dict[str, Ids]:
    """The pipeline stage of each rank, and the data-parallel rank (its pipeline); -1 for none.

    Ranks that send to each other form a pipeline. Its stages are counted from the end with the
    lower rank. A job without sends, or whose pipelines are no chains, has no such parts.

    Returns:
        `pipeline stage` and `data-parallel rank`, each of shape (ranks,), or nothing.
    """
    moves = np.flatnonzero([key.pair != (-1, -1) for key in matched.keys])
    mine = np.isin(matched.key, moves) & (matched.meeting >= 0)
    code = np.unique(np.stack([matched.key[mine], matched.rank[mine]]), axis=1)
    pairs = code[1].reshape(-1, 2).tolist() if _are_pairs(code[0]) else []
    next_to: dict[int, set[int]] = {}
    for one, other in pairs:
        next_to.setdefault(one, set()).add(other)
        next_to.setdefault(other, set()).add(one)
    stage, replica = np.full(ranks, -1), np.full(ranks, -1)
    ends = sorted(row for row, others in next_to.items() if len(others) == 1)
    number = 0
    for end in ends:
        if stage[end] >= 0:
            continue
        for place, row in enumerate(_chain(end, next_to)):
            stage[row], replica[row] = place, number
        number += 1
    return {"pipeline stage": stage, "data-parallel rank": replica} if number else {}


def _are_pairs(keys: Ids) -> bool:
    """Whether each key has two ranks."""
    return bool((np.unique(keys, return_counts=True)[1] == 2).all())


def _chain(end: int, next_to: dict[int, set[int]]) -> list[int]:
    chain, before = [end], -1
    while following := [row for row in next_to[chain[-1]] if row != before]:
        before = chain[-1]
        if len(following) > 1 or following[0] in chain:
            break
        chain.append(following[0])
    return chain
