"""The collectives of a rank: what they take, what hides them, and who comes last."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.ranks.collective_table import collective_table, has_collectives
from stepscope.models.ranks.collectives import bus_bandwidth, match_trace
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

GROUP = (
    "dtype=Float Collective_name=allreduce Group_size=4 In_msg_nelems=1000 Out_msg_nelems=1000 "
    "Process_Group_Name=0 Process_Group_Ranks=[0,1,2,3]"
)
STEP = f"""
    main     |   0 1000 | ProfilerStep#0
    main     |   5   90 | ## forward ##
    main     |  10   90 | aten::mm                | seq=1
    main     |  20   25 | cudaLaunchKernel        | corr=1
    main     | 100  300 | ## backward ##
    main     | 110  200 | c10d::allreduce_
    main     | 115  190 | record_param_comms      | {GROUP}
    main     | 120  180 | nccl:all_reduce
    main     | 130  140 | cudaLaunchKernel        | corr=2
    main     | 150  160 | cudaLaunchKernel        | corr=3
    stream 7 | 100  600 | sgemm                   | corr=1
    comm 8   | 400  500 | ncclDevKernel_Generic   | corr=2
    comm 8   | 550  750 | ncclDevKernel_Generic   | corr=3
"""


@pytest.fixture
def trace() -> Trace:
    return annotate(drawn_trace(STEP, world_size=4))


def test_the_call_names_a_kernel_that_does_not_name_itself(trace: Trace) -> None:
    (row,) = collective_table(trace, 0).rows
    assert (row.kind, row.group, row.ranks, row.members) == ("allreduce", "0", "0-3", 4)
    assert (row.count, row.bytes) == (2, 4000)
    assert row.stages == {"backward": 1.0}


def test_what_no_computation_hides_is_exposed(trace: Trace) -> None:
    """Of 0.3 ms the device computes meanwhile until 0.6 ms."""
    found = collective_table(trace, 0)
    (row,) = found.rows
    assert (row.total_ms, row.exposed_ms) == pytest.approx((0.3, 0.15))
    assert (found.total_ms, found.exposed_ms, found.step_ms) == pytest.approx((0.3, 0.15, 1.0))


def test_bandwidth_is_defined_as_by_nccl_tests(trace: Trace) -> None:
    """An all-reduce of four moves each byte one and a half times; 4 kB take 100 or 200 µs."""
    (row,) = collective_table(trace, 0).rows
    assert row.algorithm_gbs == pytest.approx((0.04 + 0.02) / 2)
    assert row.bus_gbs == pytest.approx(1.5 * row.algorithm_gbs)


def test_one_rank_alone_does_not_say_who_waits(trace: Trace) -> None:
    found = collective_table(trace, 0)
    assert (found.rows[0].wait_ms, found.rows[0].last_rank, found.arrivals) == (None, None, [])


def test_without_communication_there_is_no_row() -> None:
    quiet = annotate(drawn_trace("main | 0 9 | ProfilerStep#0\n main | 1 5 | aten::mm"))
    assert not has_collectives(quiet)
    assert collective_table(quiet, 0).rows == []


def job(*calls: tuple[int, int], name: str = "allreduce") -> Trace:
    """One collective of several ranks on CPUs, each with its start and end, µs."""
    lines = []
    group = GROUP.replace("allreduce", name)
    for rank, (start, end) in enumerate(calls):
        lines += [
            f"rank{rank} | 0 1000 | ProfilerStep#0",
            f"rank{rank} | 10 90 | aten::mm",
            f"rank{rank} | {start} {end} | gloo:all_reduce | {group}",
        ]
    trace = annotate(drawn_trace("\n".join(lines), world_size=len(calls)))
    tracks = trace["tracks"].with_columns(rank=trace["tracks"]["id"].astype("int32"))
    return trace.with_table(tracks)


def test_whoever_stays_shortest_came_last() -> None:
    """Each track stands for a rank."""
    _, matched = match_trace(job((100, 900), (500, 900), (700, 900)), np.array([0]))
    calls = np.arange(3)
    assert matched.sizes.tolist() == [3]
    assert matched.transfer_ns.tolist() == [200_000]
    assert matched.last(calls) == (2, 1.0)
    # They wait 0.6, 0.2 and 0 ms; the median rank 0.2.
    assert matched.late_ns(calls, 3).tolist() == pytest.approx([-4e5, 0.0, 2e5])


def test_the_bandwidth_is_that_of_the_whole_group_where_some_of_it_is_recorded() -> None:
    """Two of four ranks; the last one arrives 0.2 ms before the end of 4 kB."""
    trace = job((100, 900), (700, 900))
    (row,) = collective_table(trace, 0).rows
    assert row.members == 4
    assert row.bus_gbs == pytest.approx(1.5 * 0.02)
    _, matched = match_trace(trace, np.array([0]))
    assert bus_bandwidth(matched, np.array([0])).tolist() == [pytest.approx(1.5 * 0.02)]


def test_sends_and_receives_of_unknown_peers_are_not_matched() -> None:
    _, matched = match_trace(job((100, 900), (500, 900), name="send"), np.array([0]))
    assert (matched.count, matched.last(np.arange(2))) == (0, None)
