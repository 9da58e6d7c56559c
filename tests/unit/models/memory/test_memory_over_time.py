"""Stacked areas, what lives at a moment and the segments then, against a model of the allocator."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_memory import STEP, with_allocations
from model_allocator import MIB, ModelAllocator, frame

import stepscope
from stepscope.models.memory import history
from stepscope.models.memory.history import (
    OTHERS,
    MemoryChanges,
    MemoryHistory,
    StackedLevels,
    living_at,
    memory_histories,
)
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.segments import segments_at


def random_changes(seed: int, owners: int = 60, moments: int = 500) -> MemoryChanges:
    """Owners of 1 to 99 bytes, some of them there before or after."""
    chance = np.random.default_rng(seed)
    start = chance.integers(-40, moments, owners).astype(float)
    end = start + chance.integers(1, moments // 2, owners)
    life = Lifetimes(
        bytes=chance.integers(1, 100, owners),
        start=np.where(start < 0, -np.inf, start),
        end=np.where(end > moments, np.inf, np.maximum(end, 0)),
        kind=np.zeros(owners, np.int64),
        recorded=np.arange(owners),
    )
    return MemoryChanges.of_lifetimes(life)


def state_at(changes: MemoryChanges, count: int, group: np.ndarray, groups: int) -> list[int]:
    """What each group holds after so many changes, added up one by one."""
    held = [0] * groups
    for owner, size in enumerate(changes.before.tolist()):
        held[group[owner]] += size
    for row in range(count):
        held[group[changes.owner[row]]] += int(changes.change[row])
    return held


@pytest.mark.parametrize("seed", range(15))
def test_a_column_is_the_moment_of_its_maximum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_EXACT_CHANGES", 0)
    monkeypatch.setattr(history, "BINS", 8)
    monkeypatch.setattr(history, "_CHECKPOINT", 16)
    changes = random_changes(seed)
    group = np.random.default_rng(seed).integers(0, 4, len(changes.before))
    stacked = StackedLevels(changes, group, list("abcd"), in_order=True)
    for start, end in ((0, 512), (120, 200)):
        found = stacked.tile(start, end)
        assert not found.exact
        for column, begin in enumerate(found.start_ns.tolist()):
            until = begin + (end - start) // 8
            first, last = np.searchsorted(changes.time_ns, [begin, until])
            states = [state_at(changes, count, group, 4) for count in range(first, last + 1)]
            totals = [sum(one) for one in states]
            assert found.least[column] == min(totals)
            assert found.held[:, column].tolist() == states[totals.index(max(totals))]


@pytest.mark.parametrize("seed", range(15))
def test_few_changes_are_all_there(seed: int) -> None:
    changes = random_changes(seed)
    group = np.random.default_rng(seed).integers(0, 3, len(changes.before))
    found = StackedLevels(changes, group, list("abc"), in_order=True).tile(50, 400)
    assert found.exact
    for column, begin in enumerate(found.start_ns.tolist()):
        count = changes.count_until(begin) if column else np.searchsorted(changes.time_ns, 50)
        assert found.held[:, column].tolist() == state_at(changes, count, group, 3)


def test_small_groups_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_GROUPS", 2)
    changes = random_changes(3)
    group = np.arange(len(changes.before)) % 5 - 1
    stacked = StackedLevels(changes, group, list("abcd"))
    held = dict(zip("_abcd", state_at(changes, changes.peak, group + 1, 5), strict=True))
    largest = sorted(held, key=lambda name: -held[name])[:2]
    assert stacked.names == [*(name.strip("_") for name in largest), OTHERS]
    at_peak = stacked.held_after(np.array([changes.peak]))[0]
    assert at_peak.tolist()[:2] == [held[name] for name in largest]
    assert at_peak.sum() == changes.levels.max()


@pytest.mark.parametrize("seed", range(8))
def test_what_lives_and_where_is_that_of_the_model_at_every_moment(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    allocator = ModelAllocator(segment_bytes=4 * MIB)
    moments: list[tuple[int, dict[int, int], list[Any]]] = []
    for _ in range(120):
        if allocator.live and chance.random() < 0.5:
            allocator.free(chance.choice(sorted(allocator.live)))
        else:
            allocator.alloc(512 * chance.randint(1, 4000), [frame("/p/m.py", chance.randint(1, 4))])
        state = copy.deepcopy(allocator.segments), dict(allocator.live)
        moments.append((allocator.time_us, state[1], state[0]))
    history = history_of(allocator, tmp_path)
    origin = allocator.events[0]["time_us"]
    for time_us, live, segments in moments:
        time = (time_us - origin) * 1000
        count = history.changes.count_until(time)
        living = living_at(history, count)
        assert sum(one.bytes for one in living) == sum(live.values())
        assert sum(one.count for one in living) == len(live)
        assert [one.bytes for one in living] == sorted([one.bytes for one in living], reverse=True)
        found = {one.address: one for one in segments_at(history, time)}
        assert sorted(found) == sorted(one.address for one in segments)
        for one in segments:
            free = [block.size for block in one.blocks if block.state == "inactive"]
            state = found[one.address]
            assert (state.bytes, state.bytes - state.used_bytes) == (one.size, sum(free))
            assert state.largest_hole == max(free, default=0)


def history_of(allocator: ModelAllocator, folder: Path) -> MemoryHistory:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return memory_histories(stepscope.open(path, cache=False))[0]


def test_the_stack_of_an_allocation_is_that_of_the_snapshot(tmp_path: Path) -> None:
    allocator = ModelAllocator()
    frames = [
        frame("/p/site-packages/torch/f.py", 7, "linear"),
        frame("/p/m.py", 3),
        frame("/p/t.py", 9, "main"),
    ]
    for size in (1000, 3000, 2000):
        allocator.alloc(size, frames)
    allocator.alloc(500)
    history = history_of(allocator, tmp_path)
    with_stack, without = living_at(history, history.changes.peak)
    assert (with_stack.bytes, with_stack.count, with_stack.largest) == (6000, 3, 3000)
    expected = ["/p/site-packages/torch/f.py:7 linear", "/p/m.py:3 forward", "/p/t.py:9 main"]
    assert history.stack(with_stack.owner) == expected
    assert history.stack(without.owner) == []


def test_parts_of_a_segment_show_what_holds_most_of_them(tmp_path: Path) -> None:
    allocator = ModelAllocator(segment_bytes=128 * MIB)
    first = allocator.alloc(32 * MIB)
    allocator.alloc(32 * MIB)
    allocator.free(first)
    (segment,) = segments_at(history_of(allocator, tmp_path), 10**9)
    assert [part >= 0 for part in segment.parts] == [False] * 32 + [True] * 32 + [False] * 64
    assert segment.largest_hole == 64 * MIB


def test_segments_that_are_released_later_are_there_before(tmp_path: Path) -> None:
    allocator = ModelAllocator(segment_bytes=4 * MIB)
    kept = allocator.alloc(2 * MIB)
    gone = allocator.alloc(3 * MIB)
    moment = (allocator.time_us - allocator.events[0]["time_us"]) * 1000
    allocator.free(gone)
    released = allocator.segments.pop()
    allocator._record("segment_free", released.address, released.size)
    history = history_of(allocator, tmp_path)
    assert len(segments_at(history, moment)) == 2
    (left,) = segments_at(history, 10**9)
    assert left.used_bytes == 2 * MIB
    assert left.address <= kept < left.address + left.bytes


def test_a_mapped_segment_is_one_however_it_grew(tmp_path: Path) -> None:
    allocator = ModelAllocator(segment_bytes=4 * MIB)
    allocator.alloc(4 * MIB)
    segment = allocator.segments[0]
    allocator.events[0]["action"] = "segment_map"
    for number in (1, 2):
        allocator._record("segment_map", segment.address + number * 4 * MIB, 4 * MIB)
    moment = (allocator.time_us - allocator.events[0]["time_us"]) * 1000
    allocator._record("segment_unmap", segment.address + 4 * MIB, 8 * MIB)
    history = history_of(allocator, tmp_path)
    assert [one.bytes for one in segments_at(history, moment)] == [12 * MIB]
    assert [one.bytes for one in segments_at(history, 10**9)] == [4 * MIB]


def test_a_capture_is_divided_by_kind_and_module() -> None:
    trace = with_allocations(STEP, "cpu | 16 139 | 4000\ncpu | 46 119 | 2000")
    (history,) = memory_histories(trace)
    assert history.groupings.keys() == {"kind", "module"}
    names = history.groupings["module"].names
    living = living_at(history, history.changes.count_until(50_000))
    assert [(names[one.module], one.bytes) for one in living] == [("net.first", 4000), ("net.second", 2000)]


def test_without_addresses_only_kinds_are_known() -> None:
    trace = with_allocations(STEP, "cpu | 16 139 | 4000\ncpu | 46 119 | 2000", addresses=False)
    (history,) = memory_histories(trace)
    (living,) = living_at(history, history.changes.count_until(50_000))
    assert (history.groupings.keys(), living.bytes, living.count) == ({"kind"}, 6000, 0)
    assert segments_at(history, 50_000) == []
