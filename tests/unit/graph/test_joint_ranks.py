"""Several ranks in one graph: collectives, and the gain of a faster rank."""

from __future__ import annotations

import pytest
from drawn import US, step_us
from queued_loop import QueuedLoop

from stepscope.errors import GraphError, TraceError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, breakdown, build_graph, build_ranks, critical_ms, scale, select, simulate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank
from stepscope.trace.trace import Trace

RANK = """
    main      |  0  50 | ProfilerStep#{step}
    main      | 10  12 | cudaLaunchKernel    | corr=7
    main      | 13  14 | cudaStreamWaitEvent | corr=8
    main      | 14  16 | cudaLaunchKernel    | corr=9
    main      | 20  21 | cudaStreamWaitEvent | corr=10
    main      | 22  24 | cudaLaunchKernel    | corr=11
    stream 7  | 20 {ready} | wgrad_kernel    | corr=7
    stream 20 | {ready} 110 | ncclAllReduce  | corr=9 {arguments}
    stream 7  | 110 120 | adam_kernel        | corr=11
"""


def rank(number: int, ready: int, step: int = 0, arguments: str = "") -> Trace:
    """One rank whose gradients are ready at a time; the collective ends at 110."""
    text = RANK.format(ready=ready, step=step, arguments=arguments)
    return of_rank(annotate(drawn_trace(text)), number)


@pytest.fixture
def graph() -> Graph:
    return build_ranks(concat([rank(0, 60), rank(1, 100)])).check()


def starts(graph: Graph, name: str) -> list[float]:
    return (simulate(graph).start_ns[select(graph, name=name)] / US).tolist()


def test_a_collective_begins_for_all_when_the_last_has_arrived(graph: Graph) -> None:
    assert step_us(graph) == [120]
    assert starts(graph, "ncclAllReduce") == [100, 100]
    assert graph.tasks["duration_ns"][select(graph, name="ncclAllReduce")].tolist() == [10_000] * 2


def test_a_faster_straggler_speeds_up_all_ranks(graph: Graph) -> None:
    # Its kernel of 80 takes 40, so it arrives at 60 as rank 0 does.
    slow = select(graph, name="wgrad*", rank=1)
    assert step_us(scale(graph, slow, 0.5)) == [60 + 10 + 10]
    assert step_us(scale(graph, slow, 0.9)) == [20 + 72 + 10 + 10]


def test_a_faster_rank_that_waits_gains_nothing(graph: Graph) -> None:
    assert step_us(scale(graph, select(graph, name="wgrad*", rank=0), 0.5)) == [120]


def test_sends_to_unknown_ranks_wait_for_no_other_rank() -> None:
    """Gloo records no peer: what the first stage of a pipeline sends the last has not received."""
    first = "main | 0 100 | ProfilerStep#0\n gloo | 10 20 | gloo:send\n gloo | 50 60 | gloo:recv"
    last = "main | 0 100 | ProfilerStep#0\n gloo | 20 30 | gloo:recv\n gloo | 40 45 | gloo:send"
    traces = [of_rank(annotate(drawn_trace(text)), place) for place, text in enumerate((first, last))]
    graph = build_ranks(concat(traces)).check()
    assert step_us(graph) == [100]
    assert starts(graph, "gloo:send") == [10, 40]


def test_each_rank_keeps_its_begin() -> None:
    # The second recording begins 30 us later, so its times are 30 later: ready at 130, done at 140.
    later = rank(1, 100).with_metadata(origin_ns=30 * US)
    graph = build_ranks(concat([rank(0, 60), later])).check()
    assert starts(graph, "ncclAllReduce") == [130, 130]
    # Rank 0's collective was over at 110, before the last had begun: it is given no time.
    assert graph.tasks["duration_ns"][select(graph, name="ncclAllReduce")].tolist() == [0, 10_000]


def test_without_a_common_clock_the_shortest_length_is_the_transfer() -> None:
    apart = rank(1, 100).with_metadata(origin_ns=10**15)
    graph = build_ranks(concat([rank(0, 60), apart])).check()
    assert starts(graph, "ncclAllReduce") == [100, 100]
    assert step_us(graph) == [120]


def test_collectives_of_different_groups_are_independent() -> None:
    first, second = (
        rank(n, ready, arguments=f'Process_Group_Name="{n}"') for n, ready in ((0, 60), (1, 100))
    )
    graph = build_ranks(concat([first, second])).check()
    assert starts(graph, "ncclAllReduce") == [60, 100]


def cpu_rank(number: int, ready: int) -> Trace:
    """One rank without a device; its gradients are ready at a time, the collective ends at 110."""
    text = f"""
        main |  0 130    | ProfilerStep#0
        main | 10 {ready} | aten::mm
        gloo | {ready} 110 | gloo:all_reduce
        main | 112 120   | aten::add_
    """
    return of_rank(annotate(drawn_trace(text)), number)


def test_threads_that_communicate_meet_without_a_device() -> None:
    graph = build_ranks(concat([cpu_rank(0, 60), cpu_rank(1, 100)])).check()
    assert step_us(graph) == [130]
    assert starts(graph, "gloo:all_reduce") == [100, 100]
    # Rank 1's product of 90 takes 45, so that rank 0 comes last, at 60.
    assert step_us(scale(graph, select(graph, name="aten::mm", rank=1), 0.5)) == [130 - 40]


def test_one_rank_has_the_same_graph_as_alone() -> None:
    trace = concat([rank(0, 60), rank(1, 100)])
    assert step_us(build_ranks(trace, ranks=[1])) == step_us(build_graph(trace, 1)) == [120]


@pytest.mark.parametrize("factor", [1.0, 0.6, 0.4, 0.1])
@pytest.mark.parametrize("loop", [QueuedLoop(300, 10, 20), QueuedLoop(200, 10, 12, shows_queue=True)])
def test_alike_ranks_are_as_one_alone(loop: QueuedLoop, factor: float) -> None:
    """Whatever limits them: their devices, which are behind, or, once these are faster, the CPU."""
    alone, both = build_graph(loop.recording()), build_ranks(concat([loop.recording(n) for n in (0, 1)]))
    assert both.window.lead_lost_ns == alone.window.lead_lost_ns
    steps = [step_us(scale(graph, graph.on_device, factor)) for graph in (alone, both)]
    assert steps[1] == pytest.approx(steps[0], abs=0.01)


def test_ranks_without_the_same_steps_are_refused() -> None:
    trace = concat([rank(0, 60), rank(1, 100, step=4)])
    with pytest.raises(TraceError, match="rank 1 has no step 0; it has 4"):
        build_ranks(trace)


def test_a_rank_is_a_number(graph: Graph) -> None:
    with pytest.raises(GraphError, match="'two' is not a rank number"):
        select(graph, rank="two")


def test_the_breakdown_is_the_mean_and_the_path_names_its_ranks(graph: Graph) -> None:
    parts = breakdown(simulate(graph))
    total = parts.cpu_only_ms + parts.device_only_ms + parts.parallel_ms + parts.idle_ms
    assert total == pytest.approx(0.120)
    # Devices compute and transfer from 20 on; rank 0 waits from 60 to 100.
    assert parts.device_only_ms + parts.parallel_ms == pytest.approx((0.060 + 0.100) / 2)
    path = critical_ms(simulate(graph))["ranks"]
    assert path["rank 1"] >= 0.100
    assert sum(path.values()) == pytest.approx(0.120)
