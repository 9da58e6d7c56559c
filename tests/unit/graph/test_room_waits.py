"""Whether a what-if says that the CPU was recorded while it waited for room in the queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn import graph_of
from queued_loop import QueuedLoop

from stepscope.facts.annotate import annotate
from stepscope.graph import build_graph, build_ranks
from stepscope.models.whatif.anchor import waited_for_room
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank


@pytest.mark.parametrize("recorded", [1, 3])
@pytest.mark.parametrize(
    ("loop", "waits"),
    [(QueuedLoop(600, 5, 20), True), (QueuedLoop(300, 10, 40), True), (QueuedLoop(600, 10, 4), False)],
)
def test_launches_that_wait_for_room_are_seen(loop: QueuedLoop, waits: bool, recorded: int) -> None:
    assert waited_for_room(build_graph(replace(loop, recorded=recorded).recording())) == waits


@pytest.mark.parametrize("later", [0, 5])
def test_a_rank_that_begins_later_waited_for_no_room(later: int) -> None:
    def rank(begin: int) -> str:
        return f"""
            main     | {begin} {begin + 50}      | ProfilerStep#0
            main     | {begin + 10} {begin + 12} | cudaLaunchKernel | corr=7
            stream 7 | {begin + 20} {begin + 40} | ncclAllReduce    | corr=7
        """

    ranks = [of_rank(annotate(drawn_trace(rank(number * later))), number) for number in (0, 1)]
    assert not waited_for_room(build_ranks(concat(ranks)))


def test_a_copy_that_waits_for_its_stream_waits_for_no_room() -> None:
    graph = graph_of("""
        main     |   0 1000 | ProfilerStep#0
        main     |  10   12 | cudaLaunchKernel                 | corr=7
        main     |  20  650 | cudaMemcpyAsync                  | corr=8
        stream 7 |  20  600 | sgemm                            | corr=7
        stream 7 | 601  800 | Memcpy HtoD (Pageable -> Device) | corr=8
    """)
    assert not waited_for_room(graph)


def test_a_thread_of_its_own_that_launches_waited_for_no_room() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  90 | aten::mm
        other    | 30  32 | cudaLaunchKernel | corr=7
        stream 7 | 40  60 | sgemm            | corr=7
    """)
    assert not waited_for_room(graph)
