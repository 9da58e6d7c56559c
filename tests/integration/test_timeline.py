"""The timeline of real traces: nothing lost or moved at any level, and a user's tasks answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stepscope
from stepscope.timeline import Level, Operation, Timeline
from stepscope.trace.trace import Trace

RESNET = "kineto_resnet50_v100/num_workers_0.json.gz"
CHECKPOINTED = "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz"
DLRM = "dlrm_8rank_v100"


@pytest.fixture(scope="module")
def resnet(traces: Path) -> Timeline:
    return Timeline(stepscope.open(traces / RESNET, cache=False))


@pytest.fixture(scope="module")
def checkpointed(traces: Path) -> Timeline:
    return Timeline(stepscope.open(traces / CHECKPOINTED, cache=False))


@pytest.fixture(scope="module")
def dlrm(traces: Path) -> Timeline:
    return Timeline(stepscope.open(traces / DLRM, cache=False))


# -- what holds at every level


def walk(timeline: Timeline, path: str, every: bool = True) -> Iterator[tuple[Level, int, Level]]:
    """Each operation below a path that holds anything: the level that lists it, its number there,
    and the level inside it.
    """
    level = timeline.level(path, every)
    for number, operation in enumerate(level.operations):
        if level.costs.events[number] == 1:
            continue  # nothing is inside
        inner = f"{path}/{operation.id}" if path else operation.id
        yield level, number, timeline.level(inner, every)
        yield from walk(timeline, inner, every)


def check(above: Level, number: int, inside: Level) -> None:
    where = "/".join(inside.path)
    costs, outer, opened = inside.costs, above.costs, above.operations[number]
    assert outer.events[number] == costs.events.sum() + inside.passed + inside.hidden, where
    assert (costs.device_ns <= outer.device_ns[number]).all(), where
    on_cpu = costs.start_ns >= 0
    assert (costs.start_ns[on_cpu] >= outer.start_ns[number]).all(), where
    assert (costs.end_ns[on_cpu] <= outer.end_ns[number]).all(), where
    worked = costs.device_start_ns >= 0
    assert (costs.device_start_ns[worked] >= outer.device_start_ns[number]).all(), where
    assert (costs.device_end_ns[worked] <= outer.device_end_ns[number]).all(), where
    assert inside.end_ns >= costs.end_ns.max(initial=0), where
    assert inside.shift_ns >= 0
    check_threads(inside, int(outer.cpu_ns[number]))
    if opened.part is not None:
        check_section(opened, inside)


def check_threads(level: Level, parent_ns: int) -> None:
    """On one thread operations follow each other, and take no longer than their parent.

    Recorders let neighbours overlap at times; what two of them share counts once.
    """
    tracks = np.array([one.track for one in level.operations])
    for track in np.unique(tracks):
        mine = np.flatnonzero((tracks == track) & (level.costs.start_ns >= 0))
        start, end = level.costs.start_ns[mine], level.costs.end_ns[mine]
        assert (np.diff(start) >= 0).all(), level.path
        shared = np.maximum(np.maximum.accumulate(end)[:-1] - start[1:], 0).sum()
        assert level.costs.cpu_ns[mine].sum() - shared <= parent_ns, level.path


def check_section(opened: Operation, inside: Level) -> None:
    """A section's operations are a partition of it, in order, into more than one part."""
    assert len(inside) > 1
    rows = np.concatenate([one.rows for one in inside.operations])
    assert rows.tolist() == opened.rows.tolist()
    assert opened.spread is not None
    assert opened.spread.least_ns <= opened.spread.mean_ns <= opened.spread.most_ns


@pytest.mark.parametrize(("file", "steps"), [(RESNET, ["s5.0"]), (CHECKPOINTED, ["s16.0"])])
def test_nothing_is_lost_or_moved_at_any_level(traces: Path, file: str, steps: list[str]) -> None:
    timeline = Timeline(stepscope.open(traces / file, cache=False))
    for step in steps:
        check_all(timeline, step)


def test_nor_where_ranks_are_joined(dlrm: Timeline) -> None:
    steps = [one.id for one in dlrm.level("", every=True).operations]
    assert steps == [f"s10.{rank}" for rank in range(8)]
    for step in steps[::7]:
        check_all(dlrm, step)


def check_all(timeline: Timeline, step: str) -> None:
    first = timeline.level("", every=True)
    number = first.find(step)
    assert number is not None
    check(first, number, timeline.level(step, every=True))
    for above, place, inside in walk(timeline, step):
        check(above, place, inside)
    assert first.costs.events[number] == events_of(timeline.trace, step)


def events_of(trace: Trace, step: str) -> int:
    number, rank = map(int, step[1:].split("."))
    ranks = trace["tracks"]["rank"][trace.events["track"]]
    return int(((trace.events["step"] == number) & (ranks == rank)).sum())
