"""Idle time by cause of shared traces moves by no more than what is moved."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.read import read
from stepscope.trace.schema import IDLE_CAUSES
from stepscope.trace.trace import Trace

FILES = (
    "critical_path_a100/alexnet.json.gz",
    "critical_path_a100/cuda_event_sync.json.gz",
    "pair_h100_mi300x/bert_small_h100.json.gz",
    "pair_h100_mi300x/bert_small_mi300.json.gz",
    "dlrm_8rank_v100/rank0.json.gz",
    "jax_xplane/conv_mi300x.xplane.pb",
)
MOVED_NS = 1_000
MOVES = 8


def by_cause(trace: Trace) -> np.typing.NDArray[np.int64]:
    """Idle time, ns, shape (devices, causes)."""
    idle = annotate(trace)["idle"]
    cell = idle["device"].astype(np.int64) * len(IDLE_CAUSES) + idle["cause"]
    spent = np.bincount(cell, idle["end_ns"] - idle["start_ns"], 16 * len(IDLE_CAUSES))
    return spent.astype(np.int64).reshape(16, -1)


@pytest.mark.parametrize("file", FILES)
def test_an_event_that_moves_by_a_microsecond_moves_each_cause_by_no_more(file: str, traces: Path) -> None:
    trace, draw = read(traces / file), random.Random(file)
    before, start = by_cause(trace), trace.events["start_ns"]
    for _ in range(MOVES):
        row = draw.randrange(len(start))
        later = start.copy()
        later[row] = min(start[row] + MOVED_NS, start[min(row + 1, len(start) - 1)])  # still in order
        change = by_cause(trace.with_events(start_ns=later)) - before
        assert np.abs(change).max() <= MOVED_NS, trace.events.text("name")[row]
