"""Pipelined jobs of four by four ranks with a fault, and its truth."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from generated_jobs.faults import HEALTHY, Fault

sys.path.append(str(Path(__file__).parents[2] / "tests" / "unit" / "graph"))
from pipelined_job import Job

PIPELINED = ("uneven_last_stage", "one_way_link")
_STAGES, _REPLICAS, _STEPS = 4, 4, 4
_RANKS = range(_STAGES * _REPLICAS)


def pipelined(kind: str, number: int, noise: float) -> tuple[Job, Fault]:
    """The `number`-th job of a kind; `noise` is the spread of the passes."""
    dice = random.Random(number)
    each = {(rank, batch): 1000 * max(dice.gauss(1, noise), 0.5) for rank in _RANKS for batch in range(8)}
    stage = number % (_STAGES - 1)
    source = _STAGES * (number % _REPLICAS) + stage
    ends = (source, source + 1) if number % 2 else (source + 1, source)
    uneven = 1.2 + 0.1 * (number % 5) if kind == "uneven_last_stage" else 1.0

    def compute_us(rank: int, batch: int) -> float:
        return each[rank, batch] * (uneven if rank % _STAGES == _STAGES - 1 else 1.0)

    def transfer_us(first: int, second: int) -> float:
        return 1500.0 if kind == "one_way_link" and (first, second) == ends else 100.0

    job = Job(_REPLICAS, _STAGES, steps=_STEPS, compute_us=compute_us, transfer_us=transfer_us)
    last = tuple(rank for rank in _RANKS if rank % _STAGES == _STAGES - 1)
    truth = {
        "uneven_last_stage": Fault(kind, last, cause="the stages are out of balance"),
        "one_way_link": Fault(
            kind, (source, source + 1), ("communication",), cause=f"from rank {ends[0]} to rank {ends[1]}"
        ),
    }
    return job, truth.get(kind, HEALTHY)
