"""Which CPU call started which device work."""

from __future__ import annotations

import pytest
from facts import us, warning_codes

from stepscope.facts.annotate.links.launches import link_launches
from stepscope.testing import drawn_trace
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
    codes = warning_codes(link_launches(drawn_trace("\n".join(lines))))
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
    codes = warning_codes(link_launches(drawn_trace("\n".join(lines))))
    assert ("device_clock" in codes) == warned


def test_a_coarse_clock_of_the_cpu_is_told() -> None:
    """Calls every 37 us, by a clock that ticks every 25 us."""
    lines = [
        f"""main | {at // 25 * 25} {(at + 5) // 25 * 25} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8} {at + 17} | sgemm | corr={at}"""
        for at in range(1000, 4000, 37)
    ]
    (warning,) = link_launches(drawn_trace("\n".join(lines)))["warnings"].rows()
    assert warning["message"].startswith("the clock of the CPU ticks every 0.025 ms")


def test_one_early_kernel_of_many_says_nothing_of_the_clock() -> None:
    lines = [
        f"""main | {at} {at + 5} | cudaLaunchKernel | corr={at}
        stream 7 | {at + 8 - 90 * (at == 5000)} {at + 9} | sgemm | corr={at}"""
        for at in range(1000, 30000, 100)
    ]
    assert not warning_codes(link_launches(drawn_trace("\n".join(lines))))
