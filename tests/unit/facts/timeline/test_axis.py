"""The time axis: depths, tiles of several levels of detail, and the statistics of an area."""

from __future__ import annotations

import numpy as np
import pytest
from drawings import drawn

from stepscope.base.arrays import Times
from stepscope.facts.timeline.axis import time_axis
from stepscope.facts.timeline.axis.counters import BINS
from stepscope.facts.timeline.axis.time_axis import TimeAxis, TrackSlices, area_of
from stepscope.trace.schema import KERNEL_KINDS

_STEP = """
    thread 1 | 0 100 | ProfilerStep#1
    thread 1 | 0 40 | aten::mm
    thread 1 | 10 20 | cudaLaunchKernel | corr=1
    thread 1 | 40 80 | aten::add
    thread 1 | 50 60 | cudaLaunchKernel | corr=2
    stream 7 | 20 50 | gemm | corr=1
    stream 7 | 70 90 | add_kernel | corr=2
"""


def axis_of(text: str = _STEP) -> TimeAxis:
    return TimeAxis(drawn(text).index)


def test_depth_is_the_number_of_events_around() -> None:
    axis = axis_of()
    index = axis.index
    expected, found = [], [-1] * len(index.start)
    for event in range(len(index.start)):
        depth, around = 0, index.parent[event]
        while around >= 0:
            depth, around = depth + 1, index.parent[around]
        expected.append(depth)
    for track in (one for one in axis.tracks.values() if one.id.startswith("t")):
        for row, depth in zip(track.rows.tolist(), track.depth.tolist(), strict=True):
            found[row] = depth
    assert found == expected


def random_slices(seed: int, count: int) -> tuple[Times, Times]:
    """Slices without overlap, some long, many short, some without a gap, some empty."""
    random = np.random.default_rng(seed)
    length = (random.pareto(0.7, count) * 10).astype(np.int64)
    gap = random.choice([0, 0, 5, 400], count)
    end = np.cumsum(length + gap)
    return end - length, length


@pytest.mark.parametrize("count", [1, 2000, 8000])
@pytest.mark.parametrize("seed", range(2))
def test_a_tile_covers_each_bin_as_much_as_its_slices_do(
    seed: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_axis, "_FEW", 500)  # so that both ways of finding long ones are met
    start, length = random_slices(seed, count)
    slices = TrackSlices(start, length, np.zeros(count, np.int64))
    tile = BINS << max(int((start[-1] + length[-1]) // BINS).bit_length(), 1)
    for zoom in range(6):
        size = tile >> zoom
        number = int(np.random.default_rng(zoom).integers(1 << zoom))
        first, last = number * size, (number + 1) * size
        shown = slices.tile(first, last)
        touching = np.flatnonzero((start < last) & (start + np.maximum(length, 1) > first))
        if shown.exact:
            assert shown.row.tolist() == touching.tolist()
            continue
        bin = size // BINS
        assert shown.row.tolist() == touching[length[touching] >= bin].tolist()
        covered = np.zeros(BINS)
        for row in touching.tolist():
            begin, end = max(start[row], first) - first, min(start[row] + length[row], last) - first
            for at in range(int(begin // bin), min(int(-(-end // bin)), BINS)):
                covered[at] += max(min(end, (at + 1) * bin) - max(begin, at * bin), 0)
        found = np.zeros(BINS)
        found[shown.bin] = shown.cover * bin
        np.testing.assert_allclose(found, covered)


def test_what_an_area_holds_is_cut_at_its_edges() -> None:
    axis = axis_of()
    area = area_of(axis, 30_000, 80_000, list(axis.tracks.values()))
    (device,) = area.devices
    idle = sum(device.idle_ns.values())
    assert (device.computing_ns, idle) == (30_000, 20_000)
    names = axis.index.events.text("name")
    work = {names[one.longest]: (one.count, one.ns) for one in area.groups}
    assert work == {"gemm": (1, 20_000), "add_kernel": (1, 10_000)}


def test_an_area_has_computing_copying_and_communicating_one_at_a_time() -> None:
    axis = axis_of("""
        main      |  0 100 | ProfilerStep#1
        main      |  1   2 | cudaMemcpyAsync  | corr=1
        main      |  2   3 | cudaLaunchKernel | corr=2
        main      |  3   4 | cudaLaunchKernel | corr=3
        stream 7  | 10  60 | Memcpy HtoD            | corr=1
        stream 8  | 40  80 | sgemm                  | corr=2
        stream 20 | 50  95 | ncclDevKernel_AllReduce | corr=3
    """)
    area = area_of(axis, 0, 100_000, list(axis.tracks.values()))
    (device,) = area.devices
    busy = (device.computing_ns, device.copying_ns, device.communicating_ns)
    assert busy == (40_000, 30_000, 15_000)
    assert sum(busy) + sum(device.idle_ns.values()) == 100_000
    by_kind = area_of(axis, 0, 100_000, list(axis.tracks.values()), "kind").groups
    kinds = {KERNEL_KINDS[one.code]: one.ns for one in by_kind}
    assert kinds == {"memcpy": 50_000, "communication": 45_000, "gemm": 40_000}


def test_what_the_host_exchanges_is_idle_time_of_an_area() -> None:
    axis = axis_of("""
        main      |  0 100 | ProfilerStep#1
        main      |  1   2 | cudaLaunchKernel | corr=1
        gloo      | 40  70 | gloo:all_reduce  | cat=communication
        main      | 71  72 | cudaLaunchKernel | corr=2
        stream 20 |  5  40 | ncclDevKernel_AllReduce | corr=1
        stream 7  | 75 100 | sgemm                   | corr=2
    """)
    (device,) = area_of(axis, 0, 100_000, list(axis.tracks.values())).devices
    assert (device.communicating_ns, device.idle_ns["communication"]) == (35_000, 30_000)


def test_without_a_device_operators_have_their_own_time() -> None:
    axis = axis_of("""
        thread 1 | 0 100 | aten::linear
        thread 1 | 20 60 | aten::addmm
    """)
    area = area_of(axis, 10_000, 50_000, list(axis.tracks.values()))
    names = axis.index.events.text("name")
    assert not area.on_device
    assert {names[one.longest]: one.ns for one in area.groups} == {
        "aten::addmm": 30_000,
        "aten::linear": 10_000,
    }


def test_an_operator_inside_a_range_or_frame_of_another_counts_once() -> None:
    axis = axis_of("""
        thread 1 | 0 100 | CheckpointFunctionBackward
        thread 1 | 10 90 | nn.Module: Linear_0
        thread 1 | 20 60 | aten::addmm
    """)
    area = area_of(axis, 0, 100_000, list(axis.tracks.values()))
    names = axis.index.events.text("name")
    assert {names[one.longest]: one.ns for one in area.groups} == {
        "aten::addmm": 40_000,
        "CheckpointFunctionBackward": 20_000,
    }


def test_an_area_of_one_track_counts_no_other() -> None:
    axis = axis_of()
    stream = next(one for one in axis.tracks.values() if one.kind == "device")
    area = area_of(axis, 0, 100_000, [stream])
    assert area.threads == {}
    assert sum(one.ns for one in area.groups) == 50_000


def test_idle_time_and_stages_are_tracks() -> None:
    axis = axis_of()
    idle = next(one for one in axis.tracks.values() if one.kind == "idle")
    start, length = axis.spans(idle)
    # Before the first kernel, between both, and after the last.
    assert (start + length)[-1] <= 100_000
    assert int(length.sum()) == 100_000 - 50_000
    assert set(axis.labels(idle, np.arange(len(start))).name or []) <= {"host", "launch", "data"}
