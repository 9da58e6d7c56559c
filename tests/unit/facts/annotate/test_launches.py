"""Which CPU call started which device work."""

from __future__ import annotations

import numpy as np
import pytest
from facts import us, warning_codes

from stepscope.facts.annotate.links.launches import (
    clock_error,
    is_graph_launch,
    launch_calls,
    launch_of,
    launched_before_recording,
    launching_operator,
    link_launches,
    marked_on_devices,
    shows_cpu,
    with_launches_by_order,
)
from stepscope.facts.annotate.steps.missing_work import warn_clocks
from stepscope.testing import drawn_trace
from stepscope.trace.schema import ITERATIONS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def launches(trace: Trace) -> list[tuple[str | None, str | None, float, str]]:
    names = trace.events.text("name")
    return [
        (names[call], names[work], delay, evidence)
        for call, work, delay, evidence in us(
            trace, "launches", "cpu_event", "device_event", "delay_ns", "evidence"
        )
    ]


def test_one_correlation_id_links_a_call_and_its_work() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 12 | cudaLaunchKernel | corr=7
            main     | 13 15 | cudaLaunchKernel | corr=8
            stream 7 | 20 30 | sgemm            | corr=7
            stream 7 | 30 31 | relu             | corr=8
        """)
    )
    assert launches(trace) == [
        ("cudaLaunchKernel", "sgemm", 10, "correlation"),
        ("cudaLaunchKernel", "relu", 17, "correlation"),
    ]


def test_a_graph_launch_starts_many_kernels() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 12 | cudaGraphLaunch | corr=7
            stream 7 | 20 30 | first           | corr=7
            stream 7 | 30 40 | second          | corr=7
            stream 8 | 30 35 | third           | corr=7
        """)
    )
    assert [work for _, work, _, _ in launches(trace)] == ["first", "second", "third"]
    assert {call for call, _, _, _ in launches(trace)} == {"cudaGraphLaunch"}


def test_of_nested_calls_with_one_id_the_outer_one_launches() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 15 | cudaLaunchKernel | corr=7
            main     | 11 14 | cuLaunchKernelEx | corr=7
            stream 7 | 20 30 | sgemm            | corr=7
        """)
    )
    assert [call for call, _, _, _ in launches(trace)] == ["cudaLaunchKernel"]


def test_an_arrow_links_where_no_id_does() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 12 | cudaLaunchKernel
            stream 7 | 20 30 | sgemm
            ac2g     | arrow | cudaLaunchKernel > sgemm
        """)
    )
    assert launches(trace) == [("cudaLaunchKernel", "sgemm", 10, "flow")]


def test_an_id_counts_for_more_than_an_arrow() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 12 | cudaLaunchKernel | corr=7
            main     | 13 14 | cudaMemsetAsync
            stream 7 | 20 30 | sgemm            | corr=7
            ac2g     | arrow | cudaMemsetAsync > sgemm
        """)
    )
    assert launches(trace) == [("cudaLaunchKernel", "sgemm", 10, "correlation")]


def test_work_without_a_launch_is_counted_apart_from_what_was_launched_before() -> None:
    trace = link_launches(
        drawn_trace("""
            main     | 10 12 | cudaLaunchKernel | corr=7
            stream 7 |  0  9 | earlier          | corr=3
            stream 7 | 20 30 | sgemm            | corr=7
            stream 7 | 30 31 | lost             | corr=9
            stream 7 | 31 32 | without_an_id
        """)
    )
    assert [work for _, work, _, _ in launches(trace)] == ["sgemm"]
    assert warning_codes(trace) == {"launched_before_recording": 1, "unlinked_device_work": 2}


def test_of_sessions_that_repeat_correlation_ids_the_last_call_before_the_work_counts() -> None:
    """Three recordings of a loop in one file; the runtime's call holds the driver's of the same id."""
    lines = [
        f"""main | {at} {at + 10} | cudaLaunchKernel | corr={number}
        main | {at + 2} {at + 8} | cuLaunchKernel | corr={number}
        stream 7 | {at + 15} {at + 30} | k{at} | corr={number}"""
        for session in range(3)
        for number in range(4)
        for at in [1000 * session + 50 * number]
    ]
    trace = link_launches(drawn_trace("\n".join(lines)))
    names, begin = trace.events.text("name"), trace.events["start_ns"]
    links = trace["launches"]
    assert {names[row] for row in links["cpu_event"]} == {"cudaLaunchKernel"}
    assert len(links) == 12
    assert (begin[links["device_event"]] - begin[links["cpu_event"]]).tolist() == [15_000] * 12


def test_a_trace_without_device_work_has_no_launches() -> None:
    trace = link_launches(drawn_trace("main | 0 1 | aten::mm"))
    assert launches(trace) == []
    assert warning_codes(trace) == {}


@pytest.mark.parametrize(
    ("shift_us", "warned"), [(-500, True), (-60, True), (-12, False), (0, False), (60, False), (300, True)]
)
def test_a_device_whose_clock_is_early_or_late_is_told(shift_us: int, warned: bool) -> None:
    """Kernels start 8 us after their launch on an idle device, on a clock that differs."""
    lines = [
        f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8 + shift_us} {at + 40 + shift_us} | sgemm | corr={at}"""
        for at in range(1000, 3000, 100)
    ]
    codes = warning_codes(warn_clocks(link_launches(drawn_trace("\n".join(lines)))))
    assert ("device_clock" in codes) == warned


@pytest.mark.parametrize(
    ("wait", "streams", "warned"),
    [
        ("cudaDeviceSynchronize", 2, True),
        ("cudaStreamSynchronize", 1, True),
        ("cudaStreamSynchronize", 2, False),  # may wait for the other
        ("cudaEventSynchronize", 1, False),
    ],
)
def test_a_device_whose_clock_is_late_is_told(wait: str, streams: int, warned: bool) -> None:
    """Waits return before the work that was launched before them has ended."""
    lines = [
        f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
        main | {at + 6} {at + 50} | {wait}
        stream {at // 100 % streams} | {at + 20} {at + 80} | sgemm | corr={at}"""
        for at in range(1000, 3000, 100)
    ]
    codes = warning_codes(warn_clocks(link_launches(drawn_trace("\n".join(lines)))))
    assert ("device_clock" in codes) == warned


def test_a_coarse_clock_of_the_cpu_is_told() -> None:
    """Calls every 37 us, by a clock that ticks every 25 us."""
    lines = [
        f"""main | {at // 25 * 25} {(at + 5) // 25 * 25} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8} {at + 17} | sgemm | corr={at}"""
        for at in range(1000, 4000, 37)
    ]
    (warning,) = warn_clocks(link_launches(drawn_trace("\n".join(lines))))["warnings"].rows()
    assert warning["message"].startswith("the clock of the CPU ticks every 0.025 ms")


def test_one_early_kernel_of_many_says_nothing_of_the_clock() -> None:
    lines = [
        f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8 - 90 * (at == 5000)} {at + 9} | sgemm | corr={at}"""
        for at in range(1000, 30000, 100)
    ]
    assert not warning_codes(warn_clocks(link_launches(drawn_trace("\n".join(lines)))))


# -- how wrong the clocks are


def loop(call_us: int, work: tuple[int, int], count: int = 20, wait: str = "", every: int = 100) -> Trace:
    """Calls of so many us every 100 us, work from and to so long after the call begins, and a wait."""
    lines = [
        f"""main | {at} {at + call_us} | cudaLaunchKernel | corr={at}
        {f"main | {at + call_us + 1} {at + 50} | {wait}" if wait else ""}
        stream 7 | {at + work[0]} {at + work[1]} | sgemm | corr={at}"""
        for at in range(1000, 1000 + every * count, every)
    ]
    return drawn_trace("\n".join(lines))


@pytest.mark.parametrize(
    ("trace", "error", "text"),
    [
        (loop(5, (8, 40)), (0, 0, False), ""),
        (loop(5, (-492, -460)), (492_000, 20, True), "device work starts up to 0.492 ms before its launch"),
        (loop(5, (-10, 9)), (0, 0, False), ""),
        (loop(5, (-11, 9)), (11_000, 20, True), "device work starts up to 0.011 ms before"),
        (loop(5, (308, 340), every=500), (308_000, 19, True), "work starts 0.308 ms late on an idle device"),
        (loop(5, (100, 110), every=200), (100_000, 19, True), "work starts 0.1 ms late"),
        (loop(5, (99, 110), every=200), (0, 0, False), ""),
        (loop(5, (308, 340), count=10, every=500), (0, 0, False), ""),  # nine pauses
        (loop(5, (308, 340), count=11, every=500), (308_000, 10, True), "work starts 0.308 ms late"),
        (
            loop(5, (20, 80), wait="cudaDeviceSynchronize"),
            (30_000, 20, False),
            "device work ends up to 0.03 ms after a wait for it",
        ),
        (loop(5, (20, 60), wait="cudaDeviceSynchronize"), (0, 0, False), ""),  # 10 us
        (
            loop(5, (20, 61), wait="cuStreamSynchronize"),
            (11_000, 20, False),
            "device work ends up to 0.011 ms",
        ),
        (loop(5, (20, 80), wait="cudaEventSynchronize"), (0, 0, False), ""),
    ],
)
def test_by_how_much_clocks_differ(trace: Trace, error: tuple[int, int, bool], text: str) -> None:
    found = clock_error(link_launches(trace))
    assert (found.ns, found.times, found.is_certain) == error
    assert found.shown_by.startswith(text)
    assert bool(found.shown_by) == bool(text)


def test_a_wait_for_one_of_two_devices_says_nothing_of_the_other() -> None:
    trace = loop(5, (20, 80), wait="cudaDeviceSynchronize")
    with_second = drawn_trace(DEVICES)
    tracks = with_second["tracks"]
    two = with_second.with_table(tracks.with_columns(device=[-1, 0, 1]))
    assert clock_error(link_launches(trace)).ns == 30_000
    assert clock_error(link_launches(with_second)).ns == 30_000
    assert clock_error(link_launches(two)).ns == 0


DEVICES = "\n".join(
    f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
    main | {at + 6} {at + 50} | cudaDeviceSynchronize
    stream {at // 100 % 2} | {at + 20} {at + 80} | sgemm | corr={at}"""
    for at in range(1000, 3000, 100)
)


@pytest.mark.parametrize(("early", "times"), [(1, 0), (2, 2)])
def test_more_than_one_in_a_hundred_early_kernels_tell_of_the_clock(early: int, times: int) -> None:
    lines = [
        f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8 - 90 * (at < 1000 + 100 * early)} {at + 9} | sgemm | corr={at}"""
        for at in range(1000, 11000, 100)
    ]
    assert clock_error(link_launches(drawn_trace("\n".join(lines)))).times == times


@pytest.mark.parametrize(
    ("count", "tick", "ns"), [(81, 25, 25_000), (49, 25, 0), (50, 25, 25_000), (81, 14, 0)]
)
def test_the_tick_of_a_coarse_clock_is_its_error(count: int, tick: int, ns: int) -> None:
    """Calls every 37 us; the device's clock is fine."""
    lines = [
        f"""main | {at // tick * tick} {(at + 5) // tick * tick} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8} {at + 17} | sgemm | corr={at}"""
        for at in range(1000, 1000 + 37 * count, 37)
    ]
    found = clock_error(link_launches(drawn_trace("\n".join(lines))))
    assert (found.ns, found.times, found.is_certain) == (ns, min(ns, 1), ns > 0)


# -- work without an id


@pytest.mark.parametrize(
    ("calls", "kernels", "linked"),
    [(1, 1, 1), (10, 8, 8), (10, 7, 0), (8, 10, 8), (7, 10, 0), (0, 1, 0), (1, 0, 0)],
)
def test_as_many_calls_as_work_are_linked_in_order(calls: int, kernels: int, linked: int) -> None:
    lines = [f"main | {10 * number} {10 * number + 1} | cudaLaunchKernel" for number in range(calls)]
    lines += [f"stream 7 | {10 * number + 5} {10 * number + 6} | k{number}" for number in range(kernels)]
    trace = link_launches(drawn_trace("\n".join(lines)))
    assert launches(trace) == [("cudaLaunchKernel", f"k{number}", 5, "order") for number in range(linked)]
    assert warning_codes(trace).get("linked_by_order", 0) == linked


def test_kinds_of_work_are_linked_apart() -> None:
    """Too few kernels, but each copy and each memset has its call; no work starts before its call."""
    trace = link_launches(
        drawn_trace("""
            main     |  0  1 | cudaLaunchKernel
            main     |  2  3 | cudaLaunchKernel
            main     |  4  9 | hipMemcpyAsync
            main     |  5  6 | hsa_amd_memory_copy | cat=runtime
            main     | 10 11 | cudaMemsetAsync
            main     | 30 31 | hipMemcpyAsync
            stream 7 | 12 13 | kernel
            stream 7 |  8  9 | Memcpy HtoD
            stream 7 | 20 21 | Memcpy DtoH
            stream 7 | 14 15 | Memset
        """)
    )
    assert launches(trace) == [
        ("hipMemcpyAsync", "Memcpy HtoD", 4, "order"),
        ("cudaMemsetAsync", "Memset", 4, "order"),
    ]
    rows, kinds = launch_calls(trace)
    names = trace.events.text("name")
    assert [(names[row], kind) for row, kind in zip(rows.tolist(), kinds.tolist(), strict=True)] == [
        *(("cudaLaunchKernel", 0), ("cudaLaunchKernel", 0), ("hipMemcpyAsync", 1)),
        *(("cudaMemsetAsync", 2), ("hipMemcpyAsync", 1)),
    ]


@pytest.mark.parametrize(("bare", "linked"), [(1, 0), (2, 2)])
def test_where_half_of_a_stream_has_ids_the_rest_is_not_linked_by_order(bare: int, linked: int) -> None:
    lines = ["main | 0 1 | cudaLaunchKernel | corr=1", "stream 7 | 5 6 | known | corr=1"]
    for number in range(1, 1 + bare):
        lines.append(f"main | {10 * number} {10 * number + 1} | cudaLaunchKernel")
        lines.append(f"stream 7 | {10 * number + 5} {10 * number + 6} | k")
    evidence = [row[3] for row in launches(link_launches(drawn_trace("\n".join(lines))))]
    assert evidence == ["correlation"] + ["order"] * linked


def test_work_with_the_id_of_an_operator_is_of_its_calls_if_they_are_as_many() -> None:
    trace = link_launches(
        drawn_trace("""
            main     |  0  9 | aten::one | External_id=5
            main     |  1  2 | cudaLaunchKernel
            main     |  3  4 | cudaLaunchKernel
            main     |  5  6 | cudaMemcpyAsync
            main     | 10 19 | aten::two | External_id="6"
            main     | 11 12 | cudaLaunchKernel
            stream 7 | 20 21 | a | External_id=5
            stream 7 | 22 23 | b | External_id=5
            stream 7 | 24 25 | c | External_id=6
            stream 7 | 26 27 | d | External_id=6
            stream 7 | 28 29 | Memcpy HtoD | External_id=5
            stream 7 | 30 31 | e | External_id=7
        """)
    )
    begin = trace.events["start_ns"][trace["launches"]["cpu_event"]] // 1000
    found = [(row[0], row[1], row[3]) for row in launches(trace)]
    assert [(*row[:2], at) for row, at in zip(found, begin.tolist(), strict=True)] == [
        *(("cudaLaunchKernel", "a", 1), ("cudaLaunchKernel", "b", 3)),
        *(("aten::two", "c", 10), ("aten::two", "d", 10), ("cudaMemcpyAsync", "Memcpy HtoD", 5)),
        ("cudaLaunchKernel", "e", 11),  # the one that is left
    ]
    assert [row[2] for row in found] == ["external_id"] * 5 + ["order"]
    assert warning_codes(trace) == {"linked_by_external_id": 5, "linked_by_order": 1}


def test_links_that_follow_from_the_order_are_added() -> None:
    trace = link_launches(
        drawn_trace("""
            main     |  0  1 | call
            main     | 10 12 | cudaLaunchKernel | corr=7
            stream 7 |  5  9 | early            | corr=88
            stream 7 | 20 30 | sgemm            | corr=7
            stream 7 | 40 50 | lost             | corr=99
        """)
    )
    none = np.zeros(0, np.int32)
    assert with_launches_by_order(trace, none, none) is trace
    found = with_launches_by_order(trace, np.array([0], np.int32), np.array([1], np.int32))
    assert launches(found) == [
        ("call", "early", 5, "order"),
        ("cudaLaunchKernel", "sgemm", 10, "correlation"),
    ]
    assert warning_codes(found) == {"unlinked_device_work": 1, "linked_by_order": 1}
    assert launch_of(found).tolist() == [-1, 0, -1, 2, -1]


def test_an_operator_launches_what_the_calls_inside_it_do() -> None:
    trace = link_launches(
        drawn_trace("""
            main     |  0 20 | aten::linear
            main     |  2 10 | aten::mm
            main     |  3  9 | cudaLaunchKernel | corr=1
            main     |  4  8 | cuLaunchKernel   | corr=1
            main     | 30 31 | cudaLaunchKernel | corr=2
            stream 7 | 12 15 | gemm             | corr=1
            stream 7 | 40 50 | alone            | corr=2
        """)
    )
    around = launching_operator(trace).tolist()
    names = trace.events.text("name")
    assert {names[row]: around[row] and names[around[row]] for row in range(7) if around[row] >= 0} == {
        "gemm": "aten::mm"
    }


# -- work from before the recording


@pytest.mark.parametrize(
    ("front", "graph", "found"),
    [
        ("stream 7 | 0 9 | old | corr=3", "", ["old"]),  # an earlier id
        ("stream 7 | 0 9 | old | corr=99", "", []),
        ("stream 7 | 0 12 | old | corr=99", "", ["old"]),  # the device is behind the first launch
        ("stream 7 | 0 12 | lost | corr=99", "", []),  # it recurs
        ("stream 7 | 0 12 | old | corr=99", "main | 2 3 | cudaGraphLaunch", []),
        ("stream 7 | 0 12 | old | corr=99", "main | 13 14 | cudaGraphLaunch", ["old"]),
        ("stream 7 | 0 12 | old", "", ["old"]),
    ],
)
def test_work_at_the_front_of_a_queue_was_launched_before(front: str, graph: str, found: list[str]) -> None:
    trace = link_launches(
        drawn_trace(f"""
            main     | 10 12 | cudaLaunchKernel | corr=7
            {graph}
            {front}
            stream 7 | 20 30 | sgemm | corr=7
            stream 7 | 30 31 | lost  | corr=98
        """)
    )
    before = launched_before_recording(trace)
    assert [name for name, one in zip(trace.events.text("name"), before, strict=True) if one] == found


def test_the_first_launch_may_have_the_number_0() -> None:
    lines = [f"main | {at} {at + 5} | cudaLaunchKernel | corr={number}" for at, number in ((0, 0), (10, 7))]
    lines += ["stream 7 | 20 30 | linked | corr=7", "stream 7 | 40 50 | lost | corr=3"]
    assert not launched_before_recording(link_launches(drawn_trace("\n".join(lines)))).any()
    assert launched_before_recording(link_launches(drawn_trace("\n".join(lines[1:])))).sum() == 1


def test_without_any_launch_nothing_is_known_to_be_earlier() -> None:
    assert not launched_before_recording(link_launches(drawn_trace("stream 7 | 0 9 | k | corr=3"))).any()


@pytest.mark.parametrize(
    ("text", "iterating", "shows", "on_devices"),
    [
        ("main | 0 9 | ProfilerStep#1", [], False, False),
        ("main | 0 9 | aten::mm\nstream 7 | 0 9 | ProfilerStep#1 | cat=annotation", [], True, True),
        ("main | 0 9 | ProfilerStep#1\nstream 7 | 0 9 | ProfilerStep#1 | cat=annotation", [], False, False),
        ("main | 0 9 | range | cat=annotation\nstream 7 | 0 9 | k", [], False, False),
        ("main | 0 9 | range | cat=annotation\nstream 7 | 0 9 | k", [1], False, True),
        ("main | 0 9 | cudaLaunchKernel\nstream 7 | 0 9 | k", [0], True, False),
    ],
)
def test_which_side_a_trace_shows(text: str, iterating: list[int], shows: bool, on_devices: bool) -> None:
    trace = drawn_trace(text).with_table(Table(ITERATIONS, {"track": iterating}))
    assert (shows_cpu(trace), marked_on_devices(trace)) == (shows, on_devices)


def test_graphs_are_launched_by_calls_of_these_names() -> None:
    names = ["cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch_spt", "musaGraphLaunch", "muGraphLaunch"]
    assert all(map(is_graph_launch, names))
    assert not any(map(is_graph_launch, ["cudaLaunchKernel", "myGraphLaunch", "xcudaGraphLaunch"]))
