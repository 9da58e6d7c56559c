"""The simulation: small graphs by hand; compiled against plain on random graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn import US, graph_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracles import graph as oracle

from stepscope.errors import GraphError
from stepscope.graph import Graph, simulate, simulate_plainly
from stepscope.graph.critical_path import path_to
from stepscope.graph.graph import Window
from stepscope.graph.graph_schema import EDGE_KINDS, LINKS, TASKS, THREADS
from stepscope.graph.simulate import compiled_start_times
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

EMPTY = Window(0, (0,), np.array([0, 0]), 0, np.array([0]))


def made_graph(
    threads: list[int],
    durations: list[int],
    links: list[tuple[int, int, str, int]],
    ordered: bool | list[bool] = True,
    **columns: Any,
) -> Graph:
    """A graph without a trace: tasks on threads 0, 1, …, which are CPU threads."""
    count = max(threads, default=0) + 1
    in_order = [ordered] * count if isinstance(ordered, bool) else ordered[:count]
    tasks = {"thread": threads, "duration_ns": durations, **columns}
    source, target, kind, lag = zip(*links, strict=True) if links else ((), (), (), ())
    return Graph(
        Table(TASKS, tasks),
        Table(LINKS, {"source": source, "target": target, "kind": Text.of(kind), "lag_ns": lag}),
        Table(THREADS, {"name": ["t"] * count, "device": [-1] * count, "ordered": in_order}),
        Trace({}),
        EMPTY,
    )


@st.composite
def random_graphs(draw: st.DrawFn) -> Graph:
    """Links only from lower to higher tasks, so that there is no cycle."""
    threads = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=25)))
    count = len(threads)
    times = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    link = st.tuples(
        st.integers(0, count - 1),
        st.integers(0, count - 1),
        st.sampled_from(EDGE_KINDS[2:]),
        st.integers(-3, 9),
    )
    forward = [one for one in draw(st.lists(link, max_size=40)) if one[0] < one[1]]
    return made_graph(
        threads,
        draw(times),
        forward,
        draw(st.lists(st.booleans(), min_size=4, max_size=4)),
        gap_ns=draw(times),
        earliest_ns=draw(times),
        priority=draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
    )


@given(random_graphs())
def test_the_fast_simulation_equals_the_plain_one(graph: Graph) -> None:
    expected = simulate_plainly(graph).start_ns.tolist()
    assert compiled_start_times(graph).tolist() == expected


@given(random_graphs())
def test_the_critical_path_is_that_of_the_oracle(graph: Graph) -> None:
    simulation = simulate(graph)
    for last in range(len(graph)):
        expected = oracle.path_to(simulation, last).tolist()
        assert path_to(simulation, last).tolist() == expected
        assert expected[-1] == last


@given(random_graphs())
def test_no_task_starts_before_what_it_waits_for_and_no_thread_does_two_things(graph: Graph) -> None:
    start, edges, tasks = simulate(graph).start_ns, graph.edges, graph.tasks
    assert (start[edges.source] + edges.delay_ns <= start[edges.target]).all()
    assert (start >= tasks["earliest_ns"]).all()
    for thread in range(len(graph.threads)):
        mine = tasks["thread"] == thread
        begin, end = start[mine], (start + tasks["duration_ns"])[mine]
        order = np.lexsort((end, begin))
        assert (begin[order][1:] >= end[order][:-1]).all()
        assert not graph.threads["ordered"][thread] or (np.diff(begin) >= 0).all()


def test_a_launch_counts_from_the_start_and_others_from_the_end() -> None:
    graph = made_graph([0, 1, 2], [10, 5, 5], [(0, 1, "launch", 4), (0, 2, "synchronization", 4)])
    assert simulate(graph).start_ns.tolist() == [0, 4, 14]


def test_a_gap_occupies_its_thread_but_does_not_delay_dependents() -> None:
    graph = made_graph([0, 0, 1], [10, 1, 1], [(0, 2, "handover", 0)], gap_ns=[7, 0, 0])
    assert simulate(graph).start_ns.tolist() == [0, 17, 10]


def test_of_tasks_that_could_start_at_once_the_highest_priority_goes_first() -> None:
    graph = made_graph([0, 0, 0], [3, 3, 3], [], ordered=False, priority=[0, 1, 2])
    assert simulate(graph).start_ns.tolist() == [6, 3, 0]


def test_a_custom_schedule_decides() -> None:
    def last_first(frontier: list[int], could_start: NDArray[np.int64], graph: Graph) -> int:
        return max(frontier)

    graph = made_graph([0, 0, 0], [3, 3, 3], [], ordered=False).with_schedule(last_first)
    assert simulate(graph).start_ns.tolist() == [6, 3, 0]


def test_a_cycle_is_refused() -> None:
    graph = made_graph([0, 1], [1, 1], [(0, 1, "handover", 0), (1, 0, "handover", 0)])
    with pytest.raises(
        GraphError, match="cycle: task 0 waits for task 1 waits for task 0 \\(2 tasks blocked\\)"
    ):
        simulate(graph)
    with pytest.raises(
        GraphError, match="cycle: task 0 waits for task 1 waits for task 0 \\(2 tasks blocked\\)"
    ):
        graph.check()


def test_a_task_of_negative_length_is_refused() -> None:
    with pytest.raises(GraphError, match="no negative gap_ns, found -1 at task 1"):
        made_graph([0, 0], [1, 1], [], gap_ns=[0, -1]).check()


def test_a_task_out_of_its_threads_order_is_refused() -> None:
    with pytest.raises(GraphError, match="not sorted by thread"):
        made_graph([1, 0], [1, 1], []).check()


def test_the_replay_of_a_drawn_step_has_its_length() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel | corr=7
        stream 7 | 20 130 | first            | corr=7
    """)
    assert simulate(graph).step_ns.tolist() == [130 * US]
    halved = replace(graph, tasks=graph.tasks.with_columns(duration_ns=graph.tasks["duration_ns"] // 2))
    assert simulate(halved).step_ns.tolist() == [99 * US]
