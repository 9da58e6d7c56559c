"""Windows of steps: what a step's length, and its device's busy and idle time, mean."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from facts import us

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.jax.calls import BEFORE_RECORDING, UNKNOWN
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps import windows
from stepscope.facts.annotate.steps.windows import (
    end_of_earlier_work,
    follows,
    step_windows,
    unrecorded_work_end,
)
from stepscope.facts.summary.report_facts import summarize
from stepscope.graph.build_graph import build_graph
from stepscope.graph.critical_path import breakdown
from stepscope.graph.simulate import simulate
from stepscope.models.diff import compare
from stepscope.testing import drawn_trace
from stepscope.trace.schema import EVENTS, STEPS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def table(*rows: tuple[int, int, int], **columns: list[int]) -> Table:
    """Steps with their start, end and end of device work."""
    start, end, device_end = zip(*rows, strict=True)
    times = {"start_ns": start, "end_ns": end, "device_end_ns": device_end}
    return Table(STEPS, {"step": range(len(rows)), **times, **columns})


@pytest.mark.parametrize(
    ("steps", "complete", "expected"),
    [
        ([(0, 100, 150), (100, 200, 250)], None, [(0, 150), (150, 250)]),
        ([(0, 100, -1), (105, 200, -1)], None, [(0, 100), (100, 200)]),
        ([(0, 100, -1), (106, 200, -1)], None, [(0, 100), (106, 200)]),  # a pause
        ([(0, 100, 300), (200, 300, 400)], None, [(0, 300), (300, 400)]),  # its work is not the next one's
        ([(0, 100, 250), (100, 200, 200)], None, [(0, 100), (100, 200)]),  # the second had nothing to do
        ([(0, 100, 150), (100, 150, 150)], None, [(0, 100), (100, 150)]),
        ([(0, 100, 150), (100, 151, 151)], None, [(0, 150), (150, 151)]),
        ([(0, 100, 500), (200, 300, 700), (300, 400, 400)], None, [(0, 200), (200, 300), (300, 400)]),
        ([(0, 100, 150), (100, 200, 250)], [False, True], [(0, 100), (150, 250)]),
        ([(0, 100, 150), (100, 200, 250)], [True, False], [(0, 150), (100, 200)]),
        ([(0, 100, 150), (100, 200, 250), (200, 300, 350)], [True] * 3, [(0, 150), (150, 250), (250, 350)]),
    ],
)
def test_windows_drawn_by_hand(
    steps: list[tuple[int, int, int]], complete: list[bool] | None, expected: list[tuple[int, int]]
) -> None:
    found = step_windows(table(*steps), None if complete is None else np.array(complete))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@pytest.mark.parametrize(
    ("steps", "rank", "following"),
    [
        ([(0, 100, -1), (105, 200, -1), (206, 300, -1)], [0, 0, 0], [False, True, False]),
        ([(0, 100, -1), (100, 200, -1)], [0, 1], [False, False]),
        ([(0, 400, -1), (400, 500, -1), (500, 600, -1)], [0, 0, 0], [False, False, True]),  # one warms up
    ],
)
def test_a_step_follows_one_of_its_rank_without_a_pause(
    steps: list[tuple[int, int, int]], rank: list[int], following: list[bool]
) -> None:
    assert follows(table(*steps, rank=rank)).tolist() == following


QUEUE = """
    main     |    0   1 | aten::first
    main     |   10  20 | cudaLaunchKernel | corr=1
    main     |   25  26 | cudaLaunchKernel | corr=2
    main     | {late} {late} | cudaLaunchKernel | corr=3
    stream 7 | {begin} 2000 | a | corr=1
    stream 7 | 2000 3000 | b | corr=2
    stream 7 | 50000 50010 | c | corr=3
"""


@pytest.mark.parametrize(
    ("begin", "late", "end"),
    [
        (1020, 1020, 1020_000),  # a millisecond after its launch returned
        (1019, 1020, -1),
        (1020, 1019, -1),  # c was called too, and the device does nothing for long
    ],
)
def test_a_device_that_begins_a_millisecond_late_worked_off_a_queue(begin: int, late: int, end: int) -> None:
    trace = link_launches(drawn_trace(QUEUE.format(begin=begin, late=late)))
    assert unrecorded_work_end(trace, 0) == end
    assert unrecorded_work_end(trace, 1) == -1


def test_work_whose_first_launch_is_unknown_shows_no_queue() -> None:
    text = QUEUE.format(begin=1020, late=1020) + "stream 7 | 500 501 | graph | corr=9"
    assert unrecorded_work_end(link_launches(drawn_trace(text)), 0) == -1


@pytest.mark.parametrize(
    ("lengths", "is_dense"), [([1, 1], True), ([1, 0], False), ([3, 1], True), ([4], False)]
)
def test_a_queue_is_of_several_works_and_mostly_busy(lengths: list[int], is_dense: bool) -> None:
    """They begin at 0 and 3."""
    events = Table(EVENTS, {"start_ns": [0, 3][: len(lengths)], "duration_ns": lengths})
    assert windows._dense(events, np.arange(len(lengths))) is is_dense


@pytest.mark.parametrize(("delays", "usual"), [([], 0), ([7], 7_000), ([7, 9, 40], 9_000), ([-5, -3, -4], 0)])
def test_the_usual_delay_is_that_of_a_free_device(delays: list[int], usual: int) -> None:
    lines = ["main | 0 10 | cudaLaunchKernel | corr=99", "stream 7 | 20 70 | first | corr=99"]
    lines += ["main | 30 40 | cudaLaunchKernel | corr=98", "stream 7 | 70 80 | behind | corr=98"]
    for number, delay in enumerate(delays, 1):
        at = 1000 * number
        lines.append(f"main | {at} {at + 10} | cudaLaunchKernel | corr={number}")
        lines.append(f"stream 7 | {at + 10 + delay} {at + 100} | k | corr={number}")
    trace = link_launches(drawn_trace("\n".join(lines)))
    launches = trace["launches"]
    order = np.argsort(trace.events["start_ns"][launches["device_event"]], kind="stable")
    work, call = (launches[side][order] for side in ("device_event", "cpu_event"))
    assert windows._usual_delay(trace, work, call) == usual


def test_earlier_work_on_the_host_ends_with_the_last_that_was_called_before() -> None:
    trace = link_launches(
        drawn_trace("""
        main |  0 10 | PjitFunction(f) | cat=runtime
        pool | 12 25 | before | scope=a
        pool | 25 45 | called | scope=a
        main | 50 60 | PjitFunction(f) | cat=runtime
        pool | 61 70 | own | scope=a
    """)
    )
    none = np.zeros(5, np.bool_)
    called = np.array([UNKNOWN, BEFORE_RECORDING, 0, UNKNOWN, 3])
    for first_us, end in ((50, 45_000), (51, 70_000), (0, 25_000)):
        assert end_of_earlier_work(trace, called, np.array([first_us * 1000]), none) == end
    assert end_of_earlier_work(trace, np.full(5, UNKNOWN), np.array([50_000]), none) == -1
    called[1:3] = UNKNOWN
    assert end_of_earlier_work(trace, called, np.array([50_000]), none) == -1


@pytest.mark.parametrize(
    ("step_us", "queued", "end"),
    [
        (50, [], 100_000),  # until the step's own work begins
        (50, ["q"], 100_000),
        (5, ["q"], 20_000),
        (5, [], -1),
        (500, ["q"], -1),  # no work of the step
    ],
)
def test_earlier_work_on_a_device_ends_before_the_steps_own(
    step_us: int, queued: list[str], end: int
) -> None:
    trace = link_launches(
        drawn_trace("""
        main     |   8  10 | cudaLaunchKernel | corr=1
        main     |  60  70 | cudaLaunchKernel | corr=2
        stream 7 |   0  20 | q
        stream 7 |  21 150 | a | corr=1
        stream 8 | 100 120 | b | corr=2
    """)
    )
    chosen = trace.events.text("name").mask(*queued) if queued else np.zeros(len(trace.events), np.bool_)
    starts = np.array([step_us * 1000])
    assert windows._on_device(trace, starts, chosen) == end
    assert end_of_earlier_work(trace, np.full(5, UNKNOWN), starts, chosen) == end


def drawn(seed: int) -> tuple[Trace, list[int], list[int]]:
    """A loop that may run ahead of its device; the length and busy time of each step, us."""
    chance = random.Random(seed)
    cpu_bound = chance.random() < 0.5
    steps, kernels = chance.randint(1, 6), chance.randint(1, 4)
    lines, clock, free, number, ends, spans = [], 0, 0, 0, [0], []
    for step in range(steps):
        begin = clock
        for _ in range(kernels):
            number += 1
            clock += chance.randint(2, 5)
            lines.append(f"main | {clock} {clock + 1} | cudaLaunchKernel | corr={number}")
            length = chance.randint(1, 3) if cpu_bound else chance.randint(12, 20)
            start = max(free, clock + 2)
            free = start + length
            lines.append(f"stream 7 | {start} {free} | k | corr={number}")
            spans.append((start, free))
            clock += 2
        clock += chance.randint(1, 3)
        lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
        ends.append(max(clock, free))
    trace = annotate(drawn_trace("\n".join(lines)))
    busy = [
        sum(max(0, min(end, b) - max(start, a)) for start, end in spans) for a, b in itertools.pairwise(ends)
    ]
    return trace, np.diff(ends).tolist(), busy


@pytest.mark.parametrize("seed", range(200))
def test_lengths_and_busy_times_of_two_hundred_generated_loops(seed: int) -> None:
    trace, lengths, busy = drawn(seed)
    steps = trace["steps"]
    found = (steps["window_end_ns"] - steps["window_start_ns"]) / 1000
    assert found.tolist() == lengths
    assert (steps["device_busy_ns"] / 1000).tolist() == busy
    assert (steps["device_busy_ns"] + steps["device_idle_ns"] == found * 1000).all()


@pytest.mark.parametrize("seed", range(20))
def test_report_diff_and_whatif_agree_on_generated_loops(seed: int) -> None:
    trace, lengths, busy = drawn(seed)
    summary, comparison = summarize(trace), compare(trace, trace)
    if summary.steps.warm_up:
        return
    mean = sum(lengths) / len(lengths) / 1000
    assert summary.steps.mean_ms == pytest.approx(mean)
    assert build_graph(trace).window.measured_ns.mean() / 1e6 == pytest.approx(mean)
    assert comparison.step.before is not None
    assert comparison.step.before.median_ms == pytest.approx(np.median(lengths) / 1000)
    device = summary.devices[0]
    working = device.computing_ms + device.idle_ms["communication"]
    assert working == pytest.approx(sum(busy) / len(busy) / 1000)
    assert sum(device.idle_ms.values()) + device.computing_ms == pytest.approx(mean)


def test_a_warm_up_step_and_a_pause_begin_new_sequences() -> None:
    trace = annotate(
        drawn_trace("""
        main     |   0 400 | ProfilerStep#0
        main     | 400 500 | ProfilerStep#1
        main     | 500 600 | ProfilerStep#2
        main     | 700 800 | ProfilerStep#7
        main     | 390 392 | cudaLaunchKernel | corr=1
        main     | 590 592 | cudaLaunchKernel | corr=2
        main     | 790 792 | cudaLaunchKernel | corr=3
        stream 7 | 395 450 | warm             | corr=1
        stream 7 | 595 650 | late             | corr=2
        stream 7 | 795 850 | last             | corr=3
        """)
    )
    windows = us(trace, "steps", "window_start_ns", "window_end_ns", "device_busy_ns")
    assert windows == [(0, 450, 55), (450, 500, 0), (500, 650, 55), (700, 850, 55)]


@pytest.mark.parametrize("seed", range(100))
def test_a_first_step_holds_no_work_of_earlier_steps(seed: int) -> None:
    """A warm-up step, steady ones, a pause shorter than the backlog, and steady ones."""
    random = np.random.default_rng(seed)
    lengths = [600, *random.integers(90, 110, 3), *random.integers(90, 110, 3)]
    gaps = [0, 0, 0, int(random.integers(10, 60)), 0, 0, 0]
    backlog = random.integers(1, 80)  # work that each step leaves for after it
    lines, clock, last = [], 0, 0
    ends = []
    for step, (length, gap) in enumerate(zip(lengths, gaps, strict=True)):
        launch, begin, end = clock + length - 9, max(last, clock + length - 8), clock + length
        last = end + int(backlog)
        lines += [
            f"main | {clock} {end} | ProfilerStep#{step + 4 * (step > 3)}",
            f"main | {launch} {launch + 1} | cudaLaunchKernel | corr={step + 1}",
            f"stream 7 | {begin} {last} | kernel | corr={step + 1}",
        ]
        ends.append(last)
        clock = end + gap
    trace = annotate(drawn_trace("\n".join(lines)))
    found = us(trace, "steps", "window_start_ns", "window_end_ns")
    starts = np.maximum(ends[:-1], np.cumsum(np.add(lengths, gaps))[:-1]).tolist()
    assert found == list(zip([0, *starts], ends, strict=True))
    windows = dict(zip(trace["steps"]["step"].tolist(), found, strict=True))
    for first, last in ((1, 3), (2, 3), (8, 10), (9, 9)):
        graph = build_graph(trace, steps=(first, last))
        length = 1000 * (windows[last][1] - windows[first][0])
        assert graph.window.measured_ns.sum() == simulate(graph).step_ns.sum() == length
        sides = breakdown(simulate(graph))
        assert sum(msgspec.structs.astuple(sides)) * 1e6 * (last - first + 1) == pytest.approx(length)


def test_each_step_replays_alone_where_the_cpu_is_steps_ahead_of_the_device() -> None:
    lines = []
    for step in range(5):
        cpu, begin = 20 * step, 100 * step + 10
        lines += [
            f"main | {cpu} {cpu + 20} | ProfilerStep#{step}",
            f"main | {cpu + 5} {cpu + 6} | cudaLaunchKernel | corr={step + 1}",
            f"stream 7 | {begin} {begin + 95} | kernel | corr={step + 1}",
        ]
    trace = annotate(drawn_trace("\n".join(lines)))
    for step in range(1, 5):
        graph = build_graph(trace, steps=(step, step))
        assert graph.window.measured_ns.tolist() == [100_000]
        assert simulate(graph).step_ns.tolist() == [100_000]


def test_a_step_whose_work_outlasts_the_next_one_keeps_its_range_on_the_cpu() -> None:
    trace = annotate(
        drawn_trace("""
        main     |   0 100 | ProfilerStep#0
        main     | 100 200 | ProfilerStep#1
        main     |  90  92 | cudaLaunchKernel | corr=1
        main     | 110 112 | cudaLaunchKernel | corr=2
        stream 7 |  95 250 | long             | corr=1
        stream 8 | 115 120 | short            | corr=2
        """)
    )
    windows = us(trace, "steps", "window_start_ns", "window_end_ns")
    assert windows == [(0, 100), (100, 200)]
