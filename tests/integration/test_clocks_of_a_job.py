"""Ranks of a real job on machines whose clocks differ."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.trace.trace import Trace

RANKS = (0, 1, 2)


def job(traces: Path, folder: Path, ahead_us: tuple[float, ...]) -> Path:
    """Three ranks of a job of eight, each recorded by a clock that is so far ahead."""
    for rank, ahead in zip(RANKS, ahead_us, strict=True):
        path = traces / "dlrm_8rank_v100" / f"rank{rank}.json.gz"
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] = float(event["ts"]) + ahead
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return folder


def ends_of_all_reduces(trace: Trace) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """When each all-reduce ends, ns, shape (ranks, collectives)."""
    events = trace.events
    rows = np.flatnonzero(events.text("name").where(lambda name: "ncclKernel_AllReduce" in name))
    rank = trace["tracks"]["rank"][events["track"][rows]]
    ends = (events["start_ns"] + events["duration_ns"])[rows]
    return np.stack([np.sort(ends[rank == one]) for one in RANKS])


@pytest.mark.parametrize(
    ("ahead_us", "said"),
    [
        ((0, 0, 0), []),
        ((0, 3000, -700), ["clocks_set"]),
        ((0, 0, 3_600_000_000), ["clocks_set"]),  # no two recordings overlap
    ],
)
def test_collectives_end_at_once_whatever_the_clocks_say(
    traces: Path, tmp_path: Path, ahead_us: tuple[float, ...], said: list[str]
) -> None:
    trace = stepscope.open(job(traces, tmp_path, ahead_us), cache=False)
    codes = trace["warnings"].text("code")
    assert [code for code in codes if str(code).startswith("clocks")] == said
    assert np.ptp(ends_of_all_reduces(trace), axis=0).max() <= 20_000
