"""Pipelines of a job, from its sends and receives."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.ranks.collectives import Matched

_PAIR = 2


def pipeline_places(matched: Matched, ranks: int) -> dict[str, Ids]:
    """The pipeline stage of each rank, and the data-parallel rank (its pipeline); -1 for none.

    Ranks that send to each other form a pipeline. Its stages are counted from the end with the
    lower rank. Where passes are interleaved, the last stage sends to the first: then they are
    counted from the lowest rank. A job without sends, or whose pipelines are neither chains nor
    such rings, has no such parts.

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
    pipelines = _pipelines(next_to)
    for number, pipeline in enumerate(pipelines):
        stage[pipeline], replica[pipeline] = range(len(pipeline)), number
    return {"pipeline stage": stage, "data-parallel rank": replica} if pipelines else {}


def _pipelines(next_to: dict[int, set[int]]) -> list[list[int]]:
    """The ranks of each pipeline, by stage: chains, and rings that ascend from their lowest rank.

    Args:
        next_to: the ranks that each rank exchanges with, by position.
    """
    found: list[list[int]] = []
    known: set[int] = set()
    for row in sorted(next_to, key=lambda row: (len(next_to[row]) > 1, row)):
        if row in known:
            continue
        pipeline = _chain(row, next_to)
        known.update(pipeline)
        if len(next_to[row]) == 1 or _is_ring(pipeline, next_to):
            found.append(pipeline)
    return found


def _is_ring(pipeline: list[int], next_to: dict[int, set[int]]) -> bool:
    closed = next_to[pipeline[0]] == {pipeline[1], pipeline[-1]}
    return len(pipeline) > _PAIR and closed and pipeline == sorted(pipeline)


def _are_pairs(keys: Ids) -> bool:
    """Whether each key has two ranks."""
    return bool((np.unique(keys, return_counts=True)[1] == 2).all())


def _chain(first: int, next_to: dict[int, set[int]]) -> list[int]:
    """From a rank to the next, as long as there is one; from the first to its lower neighbor."""
    chain, before = [first], -1
    while following := sorted(row for row in next_to[chain[-1]] if row != before):
        before = chain[-1]
        if (len(following) > 1 and len(chain) > 1) or following[0] in chain:
            break
        chain.append(following[0])
    return chain
