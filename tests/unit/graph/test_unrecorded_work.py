"""Steps of a device that is behind the CPU, recorded while its queue holds unrecorded work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn import graph_of, starts, step_us, tasks
from queued_loop import LATENCY_US, QueuedLoop

from stepscope.graph import Graph, build_graph, scale, simulate, without_unexplained_delays

BEHIND = [QueuedLoop(300, 10, 40), QueuedLoop(700, 6, 20), QueuedLoop(1500, 5, 9), QueuedLoop(60, 10, 100)]


def longest_lag_us(graph: Graph) -> float:
    """The longest delay of a launch, us."""
    return float(graph.links["lag_ns"][graph.links.text("kind").mask("launch")].max()) / 1000


@pytest.mark.parametrize("loop", BEHIND)
@pytest.mark.parametrize("recorded", [1, 2, 3])
def test_work_that_waited_for_unrecorded_work_shows_no_latency(loop: QueuedLoop, recorded: int) -> None:
    graph = build_graph(replace(loop, recorded=recorded).recording())
    assert longest_lag_us(graph) <= 2 * LATENCY_US
    assert simulate(graph).step_ns.tolist() == graph.window.measured_ns.tolist()


@pytest.mark.parametrize("loop", BEHIND)
@pytest.mark.parametrize("factor", [1.5, 3, 10])
def test_one_recorded_step_gives_the_answer_of_several(loop: QueuedLoop, factor: float) -> None:
    trace = loop.recording()
    numbers = trace["steps"]["step"].tolist()
    alone = replace(loop, recorded=1).recording()
    expected = loop.with_device(factor).step_us
    within = 0.05 if loop.kernel_us / factor > loop.call_us else 0.15  # a wait for room hides a call's length
    for graph in (build_graph(alone), *(build_graph(trace, steps=(n, n)) for n in numbers)):
        faster = scale(graph, graph.on_device, 1 / factor)
        assert np.mean(step_us(faster)) == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("loop", BEHIND)
def test_no_step_has_a_negative_length(loop: QueuedLoop) -> None:
    graph = build_graph(loop.recording())
    for one in (graph, scale(graph, graph.on_device, 0.1), without_unexplained_delays(graph)):
        assert min(step_us(one)) > 0
    lengths = graph.window.measured_ns / 1000
    assert lengths.tolist() == pytest.approx([loop.step_us] * len(lengths), rel=0.05)


def test_the_first_work_waits_for_what_is_not_recorded_and_others_for_their_launch() -> None:
    graph = graph_of("""
        main     |    0   90 | ProfilerStep#3
        main     |   10   12 | cudaLaunchKernel | corr=1
        main     |   20   22 | cudaLaunchKernel | corr=2
        main     |   30   32 | cudaLaunchKernel | corr=3
        stream 7 | 5000 5100 | first            | corr=1
        stream 7 | 5100 5200 | second           | corr=2
        stream 7 | 5200 5300 | third            | corr=3
    """)
    assert longest_lag_us(graph) <= 10
    assert (starts(graph)["first"], step_us(graph)) == (5000, [300])
    assert tasks(graph, "stream 7") == [("first", 100, 0), ("second", 100, 0), ("third", 100, 0)]
    earlier = scale(graph, ~graph.on_device, 0.1)
    assert starts(earlier)["first"] == 5000  # a faster CPU does not end the earlier work


def test_queued_work_whose_launches_are_not_recorded_is_of_an_earlier_step() -> None:
    lines = [f"stream 7 | {100 * n + 1} {100 * n + 99} | queued" for n in range(20)]
    for step in range(3):
        lines.append(f"main | {10 * step} {10 * step + 10} | ProfilerStep#{step + 2}")
        for n in range(4):
            call, begin = 10 * step + 2 * n, 2000 + 400 * step + 100 * n
            lines.append(f"main | {call} {call + 1} | cudaLaunchKernel | corr={10 * step + n}")
            lines.append(f"stream 7 | {begin + 1} {begin + 99} | kernel | corr={10 * step + n}")
    graph = graph_of("\n".join(lines))
    assert step_us(graph) == pytest.approx([400, 400, 400], abs=3)
    assert step_us(graph) == (graph.window.measured_ns / 1000).tolist()
