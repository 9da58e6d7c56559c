"""Ranks that are slower than most, made as fast as these; and what is left to one rank."""

from __future__ import annotations

import pytest
from drawn_steps import changed, graph_of, step_us
from test_changes import COLLECTIVE

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_ranks
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

# Three ranks of 40, 40 and 80 us of work before a collective that ends at 110.
READY = (60, 60, 100)


@pytest.fixture
def graph() -> Graph:
    texts = (
        COLLECTIVE.replace("20  60 |", f"20 {ready} |")
        .replace("60 140", f"{ready} 110")
        .replace("140 160", "110 120")
        .replace("0 100 | Profiler", "0 50 | Profiler")
        for ready in READY
    )
    traces = [of_rank(annotate(drawn_trace(text)), number) for number, text in enumerate(texts)]
    return build_ranks(concat(traces)).check()


def test_the_slow_rank_works_as_long_as_the_median(graph: Graph) -> None:
    # Its work, 80 and 10, takes the 50 of the others: 44.4 and 5.6. Its first kernel, launched at
    # 10 * 5 / 9, begins 10 later; then its all-reduce is the last to arrive.
    assert step_us(graph) == 120
    last = max(10 * 5 / 9 + 10 + 80 * 5 / 9, 60)
    assert step_us(graph, "no_straggler") == pytest.approx(
        (2 * (last + 10 + 10) + last + 10 + 50 / 9) / 3, abs=0.1
    )


def test_bandwidth_shortens_the_transfer_and_not_the_wait(graph: Graph) -> None:
    assert step_us(graph, "bandwidth:factor=2") == 120 - 5


def test_one_rank_has_no_straggler(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="the trace has one rank; open the folder of all ranks"):
        changed(graph_of(COLLECTIVE), "no_straggler")
    with pytest.raises(ChangeError, match="all ranks work about as long as their peers"):
        changed(graph, "no_straggler", "no_straggler")


def test_some_changes_are_predicted_for_one_rank_alone(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="ddp: predicted for one rank only; choose one"):
        changed(graph, "ddp")


def test_ranks_without_devices_wait_for_each_other_and_not_for_a_device() -> None:
    with pytest.raises(ChangeError, match="waits for the device"):
        changed(job_on_cpus(), "no_sync")


def job_on_cpus() -> Graph:
    """Rank 0 works for 80 us; rank 1 sleeps for 40 more before its product."""
    texts = (
        f"""
        main |  0 130       | ProfilerStep#0
        main | {begin} {begin + 50} | aten::mm
        gloo | {begin + 50} 110 | gloo:all_reduce
        main | 110 120      | aten::add_
        """
        for begin in (10, 50)
    )
    traces = [of_rank(annotate(drawn_trace(text)), number) for number, text in enumerate(texts)]
    return build_ranks(concat(traces)).check()


def test_without_devices_python_counts_as_work() -> None:
    job = job_on_cpus()
    assert step_us(job) == 130
    # Rank 1 comes to the collective after 2/3 of its 100; then it has 2/3 of 20 left.
    met = 2 / 3 * 100 + 10
    assert step_us(job, "no_straggler") == pytest.approx(met + (20 + 20 * 2 / 3) / 2, abs=0.1)
