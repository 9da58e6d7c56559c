"""Windows of steps: what a step's length, and its device's busy and idle time, mean."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from facts import us
from tiers import family

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.graph.build_graph import build_graph
from stepscope.graph.critical_path import breakdown
from stepscope.graph.simulate import simulate
from stepscope.models.diff import compare
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


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


def test_lengths_and_busy_times_of_two_hundred_generated_loops() -> None:
    for seed in range(200):
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


@pytest.mark.parametrize("seed", family(range(100), 30))
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
