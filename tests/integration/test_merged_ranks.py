"""A real job whose ranks' traces somebody merged into one file for a viewer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.trace.trace import Trace

RANKS = (0, 1)


def traces_of(traces: Path) -> list[dict[str, Any]]:
    folder = traces / "dlrm_8rank_v100"
    return [json.loads(gzip.decompress((folder / f"rank{n}.json.gz").read_bytes())) for n in RANKS]


def merged(ranks: list[dict[str, Any]], path: Path, labels: bool) -> Path:
    """As SGLang's merger writes it (a label), or with ids moved by a number for each rank."""
    events = []
    for rank, trace in enumerate(ranks):
        for event in trace["traceEvents"]:
            moved = dict(event)
            if labels:
                moved["pid"] = f"[TP{rank:02d}] {event.get('pid', '')}"
            else:
                number = isinstance(event.get("pid"), int)
                moved["pid"] = event["pid"] + rank * 10**6 if number else event.get("pid")
                if "correlation" in (arguments := event.get("args") or {}):
                    correlation = int(arguments["correlation"]) + rank * 10**6
                    moved["args"] = {**arguments, "correlation": correlation}
            events.append(moved)
    path.write_text(json.dumps({**ranks[0], "traceEvents": events}))
    return path


def told(trace: Trace) -> list[Any]:
    """What launches, steps, stages and idle times each rank has."""
    return trace.query("""
        select steps.rank, end_ns - start_ns as ns, device_busy_ns,
               (select count(*) from launches join events on events.id = cpu_event
                join tracks on tracks.id = track where tracks.rank = steps.rank) as launches,
               (select sum(delay_ns) from launches join events on events.id = cpu_event
                join tracks on tracks.id = track where tracks.rank = steps.rank) as delay_ns,
               (select sum(device_ns) from stages where stages.rank = steps.rank) as device_ns,
               (select sum(end_ns - start_ns) from idle where idle.rank = steps.rank) as idle_ns
        from steps order by 1
    """).to_pylist()


@pytest.mark.parametrize("labels", [True, False], ids=["labels", "numbers"])
def test_each_rank_is_told_as_its_own_file_is(traces: Path, tmp_path: Path, labels: bool) -> None:
    ranks = traces_of(traces)
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank, trace in enumerate(ranks):
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    one = merged(ranks, tmp_path / "merged.json", labels)
    apart = stepscope.open(folder, cache=False)
    first, again = stepscope.open(one), stepscope.open(one)
    assert told(first) == told(again) == told(apart)
    assert first.metadata.ranks == again.metadata.ranks == RANKS

    merged(ranks, folder / "merged.json", labels)
    beside = stepscope.open(folder, cache=False)
    assert told(beside) == told(apart)
    assert "merged_file" in list(beside["warnings"].text("code"))
