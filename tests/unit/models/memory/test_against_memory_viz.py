"""Segments and blocks of generated snapshots, against PyTorch's own functions, to the byte."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_memory_facts import random_history

import stepscope

pytest.importorskip("torch")
from torch.cuda import _memory_viz

STATES = ("active_allocated", "active_awaiting_free", "inactive")
Totals = Counter[tuple[int, int, str, str]]


def generated(seed: int) -> dict[str, Any]:
    """A snapshot with several streams, blocks in every state, and sizes that were rounded up."""
    chance = random.Random(seed)
    snapshot = random_history(seed).snapshot()
    for segment in snapshot["segments"]:
        segment["stream"] = chance.choice([0, 0, 7])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and chance.random() < 0.2:
                block["state"] = "active_awaiting_free"
            block["requested_size"] = block["size"] - chance.choice([0, chance.randint(0, 511)])
            block["requested_size"] = max(block["requested_size"], 0)
    return snapshot


def counted_by_pytorch(snapshot: dict[str, Any]) -> Totals:
    """Bytes by stream, segment, state, and whether they were asked for or lie in gaps."""
    totals: Totals = Counter()
    text = _memory_viz.segments(snapshot, format_flamegraph=str)
    for line in text.splitlines():
        path, _, size = line.rpartition(" ")
        stream, segment, state, *_ = path.split(";")
        part = "gaps" if path.endswith("<gaps>") else "asked for"
        key = (int(stream.removeprefix("stream_")), int(segment.removeprefix("seg_")), state, part)
        totals[key] += int(size)
    return +totals


def counted_by_stepscope(path: Path) -> Totals:
    trace = stepscope.open(path, cache=False)
    segments = list(trace["segments"].rows())
    totals: Totals = Counter()
    for block in trace["blocks"].rows():
        segment = segments[block["segment"]]
        key = (segment["stream"], segment["address"], block["state"])
        totals[(*key, "asked for")] += block["requested_bytes"]
        totals[(*key, "gaps")] += block["bytes"] - block["requested_bytes"]
    return +totals


@pytest.mark.parametrize("seed", range(20))
def test_every_state_of_every_segment_has_the_bytes_that_pytorch_counts(seed: int, tmp_path: Path) -> None:
    snapshot = generated(seed)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    expected = counted_by_pytorch(snapshot)
    assert {state for _, _, state, _ in expected} == set(STATES)
    assert counted_by_stepscope(path) == expected


def test_the_shared_snapshot_has_the_bytes_that_pytorch_counts(traces: Path) -> None:
    path = traces / "memory_snapshots" / "transformer_cuda.pickle"
    snapshot = pickle.loads(path.read_bytes())  # a file of this project's own collection
    assert counted_by_stepscope(path) == counted_by_pytorch(snapshot)
