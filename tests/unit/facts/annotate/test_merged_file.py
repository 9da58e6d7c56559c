"""Files into which somebody merged the traces of several ranks."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate.ranks import looks_merged, merged_ranks
from stepscope.testing import drawn_trace
from stepscope.trace.concat import split
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

# Two ranks, each with a loop, an autograd thread and a device.
RANKS = """
    main A     |  0 100 | ProfilerStep#0
    main A     | 10  20 | cudaLaunchKernel | corr={a}
    autograd A | 30  40 | cudaLaunchKernel | corr={b}
    stream 1   | 15  25 | gemm A | corr={a}
    stream 1   | 40  60 | add A  | corr={b}
    main B     |  0 100 | ProfilerStep#0
    main B     | 11  21 | cudaLaunchKernel | corr={c}
    stream 2   | 16  26 | gemm B | corr={c}
"""
SAME = RANKS.format(a=1, b=2, c=1)
OWN = RANKS.format(a=1, b=2, c=1001)


def merged(text: str, *processes: str) -> Trace:
    """A trace as read, with these process ids on the tracks in order."""
    trace = drawn_trace(text)
    return trace.with_table(trace["tracks"].with_columns(process=Text.of(processes)))


def found(trace: Trace) -> tuple[list[int], list[int]] | None:
    ranks = merged_ranks(trace)
    return ranks and (ranks.part.tolist(), ranks.ranks)


@pytest.mark.parametrize(
    ("a", "b", "ranks"),
    [
        ("[TP00] ", "[TP01] ", [0, 1]),
        ("[TP03-DP00] ", "[TP10-DP00] ", [0, 1]),
        ("rank2_", "rank5_", [2, 5]),
        ("[Rank 2] ", "[rank 10] ", [2, 10]),
    ],
)
def test_a_label_in_front_of_the_process_tells_the_rank(a: str, b: str, ranks: list[int]) -> None:
    trace = merged(SAME, f"{a}77", f"{a}77", f"{a}0", f"{b}78", f"{b}1")
    assert found(trace) == ([0, 0, 0, 1, 1], ranks)


def test_without_labels_a_device_has_the_rank_of_its_launches() -> None:
    assert found(merged(OWN, "77", "77", "0", "100078", "100000")) == ([0, 0, 0, 1, 1], [0, 1])


def test_ranks_that_share_process_ids_of_devices_cannot_be_told_apart() -> None:
    assert found(merged(OWN, "77", "77", "0", "78", "0")) is None


def test_ranks_that_share_correlation_ids_cannot_be_told_apart_without_labels() -> None:
    trace = merged(SAME, "77", "77", "0", "78", "1")
    assert found(trace) is None
    assert looks_merged(trace)


def test_a_file_whose_processes_share_no_correlation_id_does_not_look_merged() -> None:
    assert not looks_merged(merged(OWN, "77", "77", "0", "78", "1"))


def test_one_process_with_several_devices_is_one_rank() -> None:
    trace = merged(OWN, "77", "77", "0", "77", "1")
    assert found(trace) is None
    assert not looks_merged(trace)


def test_a_second_process_without_steps_is_no_rank() -> None:
    trace = merged(OWN.replace("main B     |  0 100 | ProfilerStep#0", ""), *["77", "77", "0", "78", "1"])
    assert found(trace) is None


def test_a_process_that_only_asks_for_devices_is_no_rank() -> None:
    """The launcher of the ranks, where Nsight Systems records all processes and nothing marks steps."""
    text = "\n".join(line for line in OWN.splitlines() if "ProfilerStep" not in line)
    trace = merged(f"agent | 1 2 | cudaGetDeviceCount\n{text}", *["5", "77", "77", "0", "100078", "100000"])
    assert found(trace) == ([0, 0, 0, 0, 1, 1], [0, 1])


def test_each_rank_has_its_own_events_arrows_and_memory() -> None:
    trace = merged(SAME, "[TP0] 7", "[TP0] 7", "[TP0] 0", "[TP1] 8", "[TP1] 1")
    ranks = merged_ranks(trace)
    assert ranks
    first, second = split(trace, ranks.part)
    names = [list(part.events.text("name")) for part in (first, second)]
    assert names[0] == ["ProfilerStep#0", "cudaLaunchKernel", "gemm A", "cudaLaunchKernel", "add A"]
    assert names[1] == ["ProfilerStep#0", "cudaLaunchKernel", "gemm B"]
    assert second.events["parent"].tolist() == [-1, 0, -1]
    assert second.events["track"].tolist() == [0, 0, 1]
    assert second["tracks"]["stream"].tolist() == [-1, 2]
    assert second.events["start_ns"].tolist() == [0, 11_000, 16_000]


@pytest.mark.parametrize(
    ("a", "b", "ranks"),
    [
        ("rank9_", "rank10_", [9, 10]),
        ("[TP1] ", "[TP1] ", None),  # one label
        ("[a] rank1", "[b] rank1", [0, 1]),
        ("x[TP0] ", "x[TP1] ", None),  # a label is in front
        ("rank1_", "[b] ", [0, 1]),  # only one says its rank
    ],
)
def test_labels_are_in_their_natural_order(a: str, b: str, ranks: list[int] | None) -> None:
    trace = merged(SAME, f"{b}78", f"{b}78", f"{b}0", f"{a}77", f"{a}1")
    result = found(trace)
    assert (result and result[1]) == ranks
    if ranks == [9, 10]:
        assert result == ([1, 1, 1, 0, 0], ranks)


def test_a_process_without_a_label_is_of_the_first_rank() -> None:
    assert found(merged(SAME, "[TP0] 7", "7", "7", "[TP1] 8", "[TP1] 1")) == ([0, 0, 0, 1, 1], [0, 1])


def test_steps_are_marked_by_callers_or_all_callers_are_ranks() -> None:
    unmarked = "\n".join(line for line in OWN.splitlines() if "ProfilerStep" not in line)
    assert found(merged(unmarked, "77", "77", "0", "78", "1")) == ([0, 0, 0, 1, 1], [0, 1])
