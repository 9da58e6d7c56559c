"""Where one dependency is taken for another: each time just long enough, and just too long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn import US, graph_of, links, starts, step_us, tasks

from stepscope.errors import GraphError, TraceError
from stepscope.facts.annotate import annotate
from stepscope.graph import (
    Graph,
    add_thread,
    build_graph,
    build_ranks,
    numbers_after,
    parse_selection,
    scale,
    select,
    sending_pairs,
)
from stepscope.graph.build_graph import NAME
from stepscope.graph.data_flow import last_needs
from stepscope.graph.device_tasks import find_work, launch_latency
from stepscope.graph.graph import Window, find_window
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

NODE = "autograd::engine::evaluate_function:"
NO_ROWS = np.zeros(0, np.int64)


@pytest.mark.parametrize(("end", "handovers"), [(150, 2), (210, 2), (210.001, 1)])
def test_the_loop_waits_for_backward_that_ends_soon_after_it_went_on(end: float, handovers: int) -> None:
    graph = graph_of(f"""
        main     |   0 400 | ProfilerStep#0
        main     |  10  30 | aten::mm | seq=1
        autograd |  50 {end} | {NODE} MmBackward0 | seq=1 fwd=1
        main     | 160 170 | aten::add_
    """)
    assert len(links(graph, "handover")) == handovers


BEFORE = """
    main     |   1   2 | cudaLaunchKernel | corr=9
    stream 9 |   3   6 | before | corr=9
"""
TWO_STREAMS = (
    """
    main     |   0 900 | ProfilerStep#0
    main     |  {first} | cudaLaunchKernel | corr=1
    main     |  {second} | cudaLaunchKernel | corr=2
    stream 7 |  20 {end} | first | corr=1
    stream 8 |  {begin} 400 | second | corr=2
    main     |   7   8 | cudaLaunchKernel | corr=8
    stream 9 |   8   9 | free | corr=8
"""
    + BEFORE
)


@pytest.mark.parametrize(
    ("begin", "earlier", "waits"),
    [
        (180, False, True),  # 20 us after the end of what was launched later
        (180.001, False, False),
        (180.001, True, True),  # of what was launched before, up to half of the wait
        (302.5, True, True),
        (302.501, True, False),
    ],
)
def test_work_waited_for_what_ended_shortly_before(begin: float, earlier: bool, waits: bool) -> None:
    calls = ("10 11", "12 13") if earlier else ("12 13", "10 11")
    text = TWO_STREAMS.format(first=calls[0], second=calls[1], end=160, begin=begin)
    assert links(graph_of(text), "synchronization") == [("first", "second")] * waits


@pytest.mark.parametrize(("begin", "waits"), [(390, True), (389.999, False)])
def test_a_kernel_leaves_room_in_its_last_tenth(begin: float, waits: bool) -> None:
    graph = graph_of(f"""
        main     |   0 900 | ProfilerStep#0
        main     |   5   6 | cudaLaunchKernel | corr=1
        main     |  20  21 | cudaLaunchKernel | corr=2
        main     |  22  23 | cudaLaunchKernel | corr=3
        stream 7 |  15  25 | before  | corr=1
        stream 8 |  30 430 | large   | corr=2
        stream 7 | {begin} 525 | waiting | corr=3
    """)
    assert links(graph, "synchronization") == [("large", "waiting")] * waits


LATENCY = """
    main     |    0 5000 | ProfilerStep#0
    main     |   10   11 | cudaLaunchKernel | corr=1
    stream 7 | {begin} 3000 | first | corr=1
    {other}
"""


@pytest.mark.parametrize(
    ("begin", "other", "latency_us"),
    [
        (510, "", 500),
        (1010, "", 1000),  # the device may have been busy before
        (1010.001, "", 10),
        (1010.001, BEFORE, 1000.001),
        (5, BEFORE, 0),
    ],
)
def test_what_a_launch_takes(begin: float, other: str, latency_us: float) -> None:
    trace = annotate(drawn_trace(LATENCY.format(begin=begin, other=other)))
    work = find_work(trace, find_window(trace))
    assert launch_latency(work, NO_ROWS, NO_ROWS) == round(latency_us * US)


def test_a_lost_launch_may_be_before_the_first_operator() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 50  60 | aten::add
        stream 7 | 15  30 | lost
    """)
    assert links(graph, "launch") == [("step 0", "lost")]
    assert (starts(graph)["lost"], step_us(graph)) == (15, [100])


@pytest.mark.parametrize(("gap", "is_work"), [(10, False), (10.001, True)])
def test_unlisted_work_is_longer_than_a_launch(gap: float, is_work: bool) -> None:
    graph = graph_of(f"""
        main     |   0 100 | ProfilerStep#0
        main     |  20  24 | cudaGraphLaunch  | corr=8
        main     |  30  32 | cudaLaunchKernel | corr=9
        stream 7 |  30 160 | of_the_graph     | corr=8
        stream 7 | {160 + gap} 300 | after    | corr=9
    """)
    assert (NAME in [name for name, _, _ in tasks(graph, "stream 7")]) is is_work


@pytest.mark.parametrize(("begin", "steps"), [(105, (3, 4)), (105.001, (3,)), (95, (3, 4)), (94.999, (3,))])
def test_steps_follow_each_other_where_less_than_a_twentieth_is_between(begin: float, steps: Any) -> None:
    text = f"main | 0 100 | ProfilerStep#3\nmain | {begin} {begin + 100} | ProfilerStep#4"
    trace = annotate(drawn_trace(text))
    table = trace["steps"].with_columns(
        start_ns=[0, round(begin * US)], end_ns=[100 * US, round((begin + 100) * US)]
    )
    assert find_window(trace.with_table(table)).steps == steps


def test_the_window_of_some_steps() -> None:
    text = "\n".join(f"main | {100 * n} {100 * n + 100} | ProfilerStep#{n + 2}" for n in range(5))
    trace = annotate(drawn_trace(text))
    assert find_window(trace).steps == (2, 3, 4, 5, 6)
    assert find_window(trace, 0, (3, 5)).steps == (3, 4, 5)
    assert find_window(trace, 0, (3, 5)).starts_ns.tolist() == [100_000, 200_000, 300_000, 400_000]
    for steps in ((1, 3), (5, 7), (5, 4)):
        with pytest.raises(TraceError, match="rank 0 has no step"):
            find_window(trace, 0, steps)


def test_what_a_window_says() -> None:
    starts, ends = np.array([100, 200, 300]), np.array([250, 420])
    ahead = Window(0, (1, 2), starts, 150, ends)
    assert (ahead.end_ns, ahead.measured_ns.tolist()) == (420, [100, 170])
    assert (ahead.waits_for_earlier_work, ahead.lead_lost_ns) == (True, 0)
    assert Window(0, (1, 2), starts, 250, ends).lead_lost_ns == 30
    at_once = Window(0, (1, 2), starts, 100, ends)
    assert (at_once.waits_for_earlier_work, at_once.lead_lost_ns) == (False, 0)


# -- selections

STEP = """
    main     |  0 120 | ProfilerStep#0
    main     | 10  16 | nn.Module: Linear_0 | Python_id=1 Python_module_id=0
    main     | 11  14 | cudaLaunchKernel | corr=7
    main     | 20  26 | aten::relu
    main     | 20  24 | cudaLaunchKernel | corr=8
    stream 7 | 20  80 | sgemm | corr=7
    stream 7 | 80 110 | elementwise_kernel | corr=8
"""


def names(graph: Graph, **conditions: Any) -> list[str | None]:
    return list(graph.tasks.text("name").take(select(graph, **conditions)))


@pytest.mark.parametrize(
    ("conditions", "selected"),
    [
        ({"on_device": True}, ["sgemm", "elementwise_kernel"]),
        ({"on_device": False}, ["cudaLaunchKernel", "cudaLaunchKernel", "aten::relu"]),
        ({"category": "kernel", "kind": "gemm"}, ["sgemm"]),
        ({"stage": "backward"}, []),
        ({"rank": 0, "category": "kernel"}, ["sgemm", "elementwise_kernel"]),
        ({"rank": "1"}, []),
        ({"rank": "1" * 18}, []),
        ({"step": 0, "category": "kernel"}, ["sgemm", "elementwise_kernel"]),
        ({"step": 1}, []),
        ({"operator": "aten::relu"}, ["cudaLaunchKernel", "aten::relu", "elementwise_kernel"]),
        ({"name": "SGEMM"}, []),
        (
            {"name": "*e*", "where": lambda graph: graph.tasks["duration_ns"] == 30 * US},
            ["elementwise_kernel"],
        ),
    ],
)
def test_tasks_that_meet_every_condition(conditions: dict[str, Any], selected: list[str]) -> None:
    assert names(graph_of(STEP), **conditions) == selected


def test_a_module_has_its_parts_too() -> None:
    graph = graph_of(STEP)
    (path,) = graph.trace["modules"].text("path")
    inside = ["cudaLaunchKernel", "sgemm"]
    assert names(graph, module=path) == names(graph, module=f"{str(path)[:-1]}?") == inside
    modules = graph.trace["modules"].with_columns(path=["net.part"])
    nested = build_graph(graph.trace.with_table(modules))
    assert names(nested, module="net") == names(nested, module="*.part") == inside
    assert names(nested, module="ne") == names(nested, module="part") == []


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"kind": "gem"}, "expected a kind of .*; found 'gem'"),
        ({"category": "gem"}, "expected a category of .*; found 'gem'"),
        ({"rank": "-1"}, "'-1' is not a rank number"),
        ({"rank": "1" * 19}, f"'{'1' * 18}' is not a rank number"),
    ],
)
def test_conditions_that_cannot_be_met_are_refused(conditions: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        select(graph_of(STEP), **conditions)


@pytest.mark.parametrize("text", ["stage", "stage=", "=a", "stages=a", "stage=a+", "a=b+stage=c"])
def test_a_selection_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(GraphError, match="expected KEY=VALUE"):
        parse_selection(text)


def test_a_selection_by_every_key() -> None:
    keys = ("stage", "module", "name", "operator", "kind", "category", "rank")
    assert parse_selection("+".join(f"{key}={key}=1" for key in keys)) == {key: f"{key}=1" for key in keys}


@pytest.mark.parametrize("factor", [-0.1, float("nan"), float("inf"), [1.0, -1.0]])
def test_a_factor_is_a_number_of_at_least_0(factor: Any) -> None:
    graph = graph_of(STEP)
    with pytest.raises(GraphError, match="expected a factor of at least 0, found"):
        scale(graph, select(graph, category="kernel"), factor)
    assert step_us(scale(graph, select(graph, category="kernel"), 0)) == [120]


def test_ids_after_an_insertion() -> None:
    assert numbers_after(6, [0, 3, 5]).tolist() == [1, 2, 4]
    assert numbers_after(2, []).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("ends", "starts", "kept"),
    [
        ((5, 6), (10, 20), [(1, 2)]),  # what ends later implies what ended before
        ((5, 5), (10, 20), [(0, 2)]),
        ((6, 5), (20, 10), [(0, 3)]),  # and what begins earlier what begins later
    ],
)
def test_only_needs_that_others_do_not_imply(
    ends: tuple[int, int], starts: tuple[int, int], kept: list[tuple[int, int]]
) -> None:
    """Rows 0 and 1 write on one thread, rows 2 and 3 need both on another."""
    pairs = np.array([0, 1, 0, 1]), np.array([2, 2, 3, 3])
    end, start = np.array([*ends, 99, 99]), np.array([0, 0, *starts])
    source, target = last_needs(np.array([0, 0, 1, 1]), pairs, start, end)
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == kept
    each = last_needs(np.array([0, 1, 2, 3]), pairs, start, end)
    assert [len(column) for column in each] == [4, 4]


# -- ranks


def rank(number: int, *work: str) -> Any:
    lines = ["main | 0 300 | ProfilerStep#0"]
    for place, one in enumerate(work):
        call = 10 + 4 * place
        lines += [f"main | {call} {call + 2} | cudaLaunchKernel | corr={place}", f"{one} corr={place}"]
    return of_rank(annotate(drawn_trace("\n".join(lines))), number)


def transfer(way: str, peer: int, begin: float, end: float) -> str:
    key = {"send": "Dst_Rank", "recv": "Src_Rank"}[way]
    facts = f"Collective_name={way} {key}={peer} cat=communication"
    return f"stream 20 | {begin} {end} | ncclDevKernel_SendRecv | {facts}"


@pytest.mark.parametrize(
    ("received", "arrivals"),
    [
        ((60, 90), 2),  # a send that ended waits for nothing: it arrives, and its receive waits
        ((40, 90), 4),
    ],
)
def test_a_send_that_ended_before_its_receive_began_does_not_wait(
    received: tuple[float, float], arrivals: int
) -> None:
    graph = build_ranks(
        concat([rank(0, transfer("send", 1, 30, 50)), rank(1, transfer("recv", 0, *received))])
    )
    assert len(links(graph.check(), "communication")) == arrivals
    assert sending_pairs(graph) == {(0, 1)}


def test_transfers_and_collectives_that_not_all_ranks_have_meet_nowhere() -> None:
    reduces = "stream 22 | {} {} | ncclDevKernel_AllReduce | cat=communication"
    unequal = [rank(0, reduces.format(100, 110), reduces.format(120, 130)), rank(1, reduces.format(100, 110))]
    assert not links(build_ranks(concat(unequal)).check(), "communication")
    sends = [
        rank(0, transfer("send", 1, 30, 50), transfer("send", 1, 60, 70)),
        rank(1, transfer("recv", 0, 40, 90)),
    ]
    assert not links(build_ranks(concat(sends)).check(), "communication")
    both = build_ranks(concat([rank(n, reduces.format(100 + n, 110)) for n in (0, 1)])).check()
    assert len(links(both, "communication")) == 4
    assert sending_pairs(both) == set()


def test_a_thread_is_added_with_the_rank_of_the_first() -> None:
    graph = graph_of(STEP)
    ranked = build_graph(of_rank(graph.trace, 3))
    added, number = add_thread(ranked, "network", "communication", 2, ordered=False)
    (*_, last) = added.threads.rows()
    assert (
        number,
        last["name"],
        last["kind"],
        last["device"],
        last["ordered"],
        last["main"],
        last["rank"],
    ) == (*(2, "network", "communication", 2, 0, 0), 3)
    assert last["track"] in (None, -1)
    assert starts(added)["sgemm"] == 20
