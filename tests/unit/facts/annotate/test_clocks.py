"""Clocks of ranks, told by collectives that end on all of them at once."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.ranks import compare_clocks
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

ENDS = (1000, 2000, 3000)


def rank(
    ends: tuple[int, ...] = ENDS,
    ahead_us: int = 0,
    name: str = "ncclDevKernel_AllReduce",
    group: str = "0",
    step: int = 0,
) -> Trace:
    """One process whose collectives end at these moments, us, by a clock that is ahead."""
    lines = "\n".join(
        f"""
        main      | {end - 200} {end - 190} | cudaLaunchKernel | corr={end}
        stream 20 | {end - 180} {end} | {name} | corr={end} Process_Group_Name={group}
    """
        for end in ends
    )
    drawn = drawn_trace(f"main | 0 5000 | ProfilerStep#{step}\n{lines}")
    return annotate(drawn.with_metadata(origin_ns=(70_000 + ahead_us) * 1000))


def ahead_us(*traces: Trace) -> list[float]:
    return [one / 1000 for one in compare_clocks(traces).ahead_ns]


@pytest.mark.parametrize("error", [3_000, -3_000, 4_000_000_000])
def test_a_clock_that_differs_is_found(error: int) -> None:
    late = rank((1003, 1999, 3001), ahead_us=error)
    assert compare_clocks([rank(), late]) == ([0, (error + 1) * 1000], 3)


def test_clocks_that_agree_are_left_alone() -> None:
    assert ahead_us(rank(), rank((1007, 2004, 3002))) == [0, 0]
    assert ahead_us(rank(), rank(ahead_us=40)) == [0, 0]


def test_ends_that_vary_tell_nothing() -> None:
    assert ahead_us(rank(), rank((1100, 2900, 3300), ahead_us=100)) == [0, 0]


@pytest.mark.parametrize("name", ["ncclDevKernel_Broadcast", "ncclDevKernel_SendRecv"])
def test_what_one_rank_can_end_before_another_begins_tells_nothing(name: str) -> None:
    assert ahead_us(rank(name=name), rank(name=name, ahead_us=3000)) == [0, 0]


def test_ranks_without_a_common_group_are_compared_by_way_of_others() -> None:
    first, last = rank(group="a"), rank(group="b", ahead_us=9000)
    both = annotate(
        drawn_trace("""
        main      | 0 9000 | ProfilerStep#0
        stream 20 | 800 1000 | ncclDevKernel_AllReduce | Process_Group_Name=a
        stream 20 | 1800 2000 | ncclDevKernel_AllReduce | Process_Group_Name=a
        stream 20 | 2800 3000 | ncclDevKernel_AllReduce | Process_Group_Name=a
        stream 21 | 850 1000 | ncclDevKernel_AllReduce | Process_Group_Name=b
        stream 21 | 1850 2000 | ncclDevKernel_AllReduce | Process_Group_Name=b
        stream 21 | 2850 3000 | ncclDevKernel_AllReduce | Process_Group_Name=b
    """)
    ).with_metadata(origin_ns=71_000_000)
    assert ahead_us(first, last, both) == [0, 9000, 1000]


@pytest.mark.parametrize(
    "other", [rank(ENDS[:2], 3000), rank(ahead_us=3000, step=7), rank(ahead_us=3000, group="b")]
)
def test_other_collectives_and_other_steps_tell_nothing(other: Trace) -> None:
    assert ahead_us(rank(), other) == [0, 0]


def test_which_clocks_were_set_is_said() -> None:
    clocks = compare_clocks([rank(), rank(ahead_us=-3000), rank()])
    assert clocks.warnings([0, 1, 5]) == [
        (
            "clocks_set",
            "the clock of rank 1 differs from the clock of rank 0 by 3 ms; "
            "corrected with 3 collectives, which end on all ranks at once",
            1,
        )
    ]
    several = compare_clocks([rank(), rank(ahead_us=-3000), rank(ahead_us=800)])
    ((_, message, count),) = several.warnings([0, 1, 2])
    assert count == 2
    assert message.startswith("the clocks of ranks 1, 2 differ from the clock of rank 0")
    assert compare_clocks([rank(), rank()]).warnings([0, 1]) == []


@pytest.mark.parametrize(("ahead", "found"), [(49, 0), (50, 50), (-50, -50)])
def test_fifty_microseconds_are_notable(ahead: int, found: int) -> None:
    assert ahead_us(rank(), rank(ahead_us=ahead)) == [0, found]


@pytest.mark.parametrize(("ends", "found"), [((1000, 2010, 3000), 50), ((1000, 2013, 3000), 0)])
def test_an_offset_is_five_times_its_spread(ends: tuple[int, ...], found: int) -> None:
    """Which is that of nine of ten ends: 8 us and 10.4 us."""
    assert ahead_us(rank(), rank(ends, ahead_us=50)) == [0, found]


def test_of_many_ranks_the_first_are_named() -> None:
    clocks = compare_clocks([rank(), *(rank(ahead_us=3000) for _ in range(9))])
    ((_, message, count),) = clocks.warnings(range(10))
    assert count == 9
    assert message.startswith("the clocks of ranks 1, 2, 3, 4, 5, 6, 7, 8, … differ")
    assert "by up to 3 ms" in message
    ((_, message, _),) = compare_clocks([rank(), *(rank(ahead_us=3000) for _ in range(8))]).warnings(range(9))
    assert "7, 8 differ" in message


def test_kinds_with_other_numbers_of_collectives_are_left_out() -> None:
    other = rank((1000, 2000, 2500, 3000), ahead_us=3000)
    assert ahead_us(rank(), other) == [0, 0]
