"""Idle time by cause of shared traces: the same in every answer, and no cliffs when an event moves."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.analyze import RuleContext
from stepscope.errors import StepscopeError
from stepscope.facts.annotate import annotate
from stepscope.facts.timeline.axis.time_axis import TimeAxis, area_of
from stepscope.facts.timeline.event_index import Index
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


SUFFIXES = (".json", ".gz", ".pb", ".sqlite")
LARGE = 300_000  # events


@pytest.mark.full
def test_every_answer_on_a_shared_file_divides_idle_time_alike(traces: Path) -> None:
    checked = 0
    for folder in (traces, traces.parent / "cases" / "traces"):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name.endswith(SUFFIXES):
                checked += check_answers(path)
    assert checked > 40


def check_answers(path: Path) -> int:
    """The number of devices whose idle time the report, SQL, rules and the page divide alike."""
    try:
        trace = stepscope.open(path, cache=False)
    except StepscopeError:
        return 0
    if not len(trace["steps"]) or len(trace.events) > LARGE:
        return 0
    context = RuleContext(trace)
    rank, measures = context.rank, context.measures
    numbers = np.array(measures.summary.steps.numbers)
    for device in measures.summary.devices:
        report = {cause: ms for cause, ms in device.idle_ms.items() if ms}
        assert device.computing_ms + sum(report.values()) == pytest.approx(device.window_ms), path
        idle = trace["idle"]
        chosen = (idle["rank"] == rank) & (idle["device"] == device.device) & np.isin(idle["step"], numbers)
        answers = [
            sums(trace.with_table(idle.take(chosen))),
            on_the_page(trace, rank, device.device, numbers),
        ]
        if device.device == measures.busiest_device.device:
            answers.append({cause: measures.idle(cause).total() for cause in report})
        for answer in answers:
            ms = {cause: ns / 1e6 / len(numbers) for cause, ns in answer.items() if ns}
            assert ms == pytest.approx(report), path
    return len(measures.summary.devices)


def sums(trace: Trace) -> dict[str, int]:
    """Idle time by cause, ns, as SQL shows it."""
    rows = trace.query("select cause, sum(end_ns - start_ns) as ns from idle group by cause").to_pylist()
    return {row["cause"]: int(row["ns"]) for row in rows}


def on_the_page(trace: Trace, rank: int, device: int, numbers: np.typing.NDArray[np.int64]) -> Counter[str]:
    """Idle time by cause in the windows of the steps, ns, as the page's statistics of an area show it."""
    axis, total = TimeAxis(Index(trace)), Counter[str]()
    steps = trace["steps"]
    chosen = steps.take((steps["rank"] == rank) & np.isin(steps["step"], numbers))
    columns = (chosen[f"window_{side}_ns"].tolist() for side in ("start", "end"))
    for start, end in zip(*columns, strict=True):
        for area in area_of(axis, start, end, list(axis.tracks.values())).devices:
            if (area.rank, area.device) == (rank, device):
                total += Counter(area.idle_ns)
                total += Counter(communication=area.communicating_ns)  # of its own
    return total
