"""Counters on the time axis: which there are, their tiles, and their statistics in an area."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawings import drawn

from stepscope.facts.annotate import annotate
from stepscope.facts.timeline.axis.counters import BINS, CounterSummary, CounterValues, Runs
from stepscope.facts.timeline.axis.time_axis import TimeAxis
from stepscope.facts.timeline.event_index import Index
from stepscope.testing import drawn_trace
from stepscope.trace.schema import COUNTERS, MEMORY
from stepscope.trace.table import Table, Text

_STEP = """
    thread 1 | 0 100 | ProfilerStep#1
    thread 1 | 0 10 | cudaLaunchKernel | corr=1
    stream 7 | 20 40 | gemm | corr=1
    stream 8 | 30 50 | gemm | corr=1
    thread 2 | 0 90 | aten::mm
"""


def axis_with(*tables: Table) -> TimeAxis:
    """The axis of a step of 100 µs whose device is busy from 20 to 50 µs."""
    trace = annotate(drawn_trace(_STEP))
    for table in tables:
        trace = trace.with_table(table)
    return TimeAxis(Index(trace))


def memory(*rows: tuple[int, str, int, int, int]) -> Table:
    """Time, device, size, and what is allocated and reserved after it."""
    names = ("time_ns", "device", "bytes", "allocated_bytes", "reserved_bytes")
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    return Table(MEMORY, columns | {"device": Text.of(columns["device"])})


def recorded(*rows: tuple[int, int, str, str, float]) -> Table:
    """Time, track, name, series and value."""
    names = ("time_ns", "track", "name", "series", "value")
    columns: dict[str, Any] = dict(zip(names, zip(*rows, strict=True), strict=True))
    texts = {name: Text.of(columns[name]) for name in ("name", "series")}
    return Table(COUNTERS, columns | texts)


def listed(axis: TimeAxis) -> list[tuple[str, int, str, list[tuple[int, float]]]]:
    """Name, device, unit and the changes of each counter but utilization."""
    return [
        (
            one.name,
            one.device,
            one.unit,
            list(zip(one.values.time_ns.tolist(), one.values.value.tolist(), strict=True)),
        )
        for one in axis.counters.values()
        if one.unit != "share"
    ]


def test_utilization_is_the_share_of_time_in_which_any_stream_is_busy() -> None:
    (one,) = axis_with().counters.values()
    assert (one.name, one.device, one.unit) == ("device 0 utilization", 0, "share")
    assert one.values.statistics(0, 100_000) == CounterSummary(None, 0.3, None)
    assert one.values.statistics(40_000, 60_000) == CounterSummary(None, 0.5, None)
    assert one.values.range == (0, 1)


def test_memory_is_known_before_its_first_change() -> None:
    axis = axis_with(
        memory(
            (10_000, "cuda:0", 300, 1300, 2000),
            (10_000, "cpu", 8, 8, 0),
            (30_000, "cuda:0", -500, 800, 2000),
            (30_000, "cuda:1", 1, 1, -1),
        )
    )
    assert listed(axis) == [
        ("cuda:0 memory allocated", 0, "bytes", [(0, 1000), (10_000, 1300), (30_000, 800)]),
        ("cuda:0 memory reserved", 0, "bytes", [(10_000, 2000), (30_000, 2000)]),
        ("cuda:1 memory allocated", 1, "bytes", [(0, 0), (30_000, 1)]),
        ("cpu memory allocated", -1, "bytes", [(0, 0), (10_000, 8)]),
    ]


def test_without_totals_memory_counts_from_the_start_of_the_recording() -> None:
    axis = axis_with(memory((10_000, "cuda:0", -300, -1, -1), (20_000, "cuda:0", 700, -1, -1)))
    name, _, _, changes = listed(axis)[0]
    assert name == "cuda:0 memory allocated since start"
    assert changes == [(0, 0), (10_000, -300), (20_000, 400)]


def test_a_recorded_counter_is_a_series_of_a_process() -> None:
    axis = axis_with(
        recorded(
            (0, 0, "power", "W", 90.0),
            (0, 0, "clock", "clock", 1300.0),
            (50_000, 1, "power", "W", float("nan")),
            (60_000, 3, "power", "W", 110.0),  # of another thread of the same process
            (60_000, 1, "power", "W", 200.0),  # of a device
        )
    )
    assert listed(axis) == [
        ("power W, process 0", 0, "", [(60_000, 200)]),
        ("power W, process 1", -1, "", [(0, 90), (60_000, 110)]),
        ("clock, process 1", -1, "", [(0, 1300)]),
    ]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 40, CounterSummary(1, (10 * 1 + 20 * 5 + 10 * 2) / 40, 5)),
        (15, 25, CounterSummary(5, 5, 5)),
        (10, 11, CounterSummary(3, 5, 5)),  # at 10 it is 3 for a moment
        (35, 1000, CounterSummary(2, 2, 2)),
    ],
)
def test_statistics_hold_values_until_the_next(start: int, end: int, expected: CounterSummary) -> None:
    values = CounterValues(np.array([0, 10, 10, 30]), np.array([1.0, 3.0, 5.0, 2.0]))
    assert values.statistics(start, end) == expected


def test_nothing_is_known_before_the_first_value() -> None:
    values = CounterValues(np.array([10, 20]), np.array([4.0, 8.0]))
    assert values.statistics(0, 10) is None
    assert values.statistics(0, 25) == CounterSummary(4, (10 * 4 + 5 * 8) / 15, 8)
    assert values.tile(0, 8 * BINS).start_ns.tolist() == [10, 20]


def random_values(count: int, is_share: bool) -> CounterValues:
    """Values that begin late, with bursts of changes, pauses, and some at one moment."""
    random = np.random.default_rng(7)
    time = np.cumsum(random.choice([0, 1, 3, 400, 9000], count, p=[0.1, 0.4, 0.3, 0.19, 0.01]))
    value = np.arange(count) % 2 if is_share else random.integers(-5, 50, count)
    return CounterValues(time.astype(np.int64) + 5000, value.astype(float), is_share=is_share)


def bins_of(runs: Runs, start: int, size: int) -> list[tuple[float, float] | None]:
    """The least and the most of each bin of a tile that is not exact."""
    found = np.searchsorted(runs.start_ns, start + np.arange(BINS) * size, side="right") - 1
    return [(runs.least[at], runs.most[at]) if at >= 0 else None for at in found.tolist()]


@pytest.mark.parametrize("is_share", [False, True])
def test_a_bin_has_the_extremes_or_the_mean_of_what_holds_in_it(is_share: bool) -> None:
    values = random_values(30_000, is_share)
    tile = BINS << int(values.time_ns[-1] // BINS).bit_length()
    for zoom in range(3):
        size = tile >> zoom
        start = size * int(np.random.default_rng(zoom).integers((1 << zoom) // 2 + 1))
        runs = values.tile(start, start + size)
        if runs.exact:
            inside = (values.time_ns >= start) & (values.time_ns < start + size)
            assert set(values.time_ns[inside]) <= set(runs.start_ns)
            continue
        bin = size // BINS
        for number, found in enumerate(bins_of(runs, start, bin)):
            one = values.statistics(start + number * bin, start + (number + 1) * bin)
            if one is None:
                assert found is None
            elif is_share and start + number * bin >= values.time_ns[0]:
                assert found == pytest.approx((one.mean, one.mean))
            elif not is_share:
                assert found == (one.least, one.most)


def test_a_value_that_stays_is_one_run() -> None:
    values = CounterValues(np.arange(5000), np.full(5000, 7.0))
    runs = values.tile(0, 1 << 20)
    assert not runs.exact
    assert (runs.start_ns.tolist(), runs.least.tolist(), runs.most.tolist()) == ([0], [7], [7])


def test_counters_of_a_trace_without_any() -> None:
    axis = TimeAxis(drawn("thread 1 | 0 100 | aten::mm").index)
    assert axis.counters == {}
