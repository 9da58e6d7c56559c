"""Where the time of the first step begins, if a device still does work from before it."""

from __future__ import annotations

from facts import us

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

MS = 1000


def windows(text: str) -> list[tuple[object, ...]]:
    return us(annotate(drawn_trace(text)), "steps", "window_start_ns", "window_end_ns")


def test_a_device_that_begins_late_did_work_from_before_the_recording() -> None:
    assert windows(f"""
        main     |    0  100 | ProfilerStep#1
        main     |   10   20 | cudaLaunchKernel | corr=1
        main     |  100  200 | ProfilerStep#2
        main     |  110  120 | cudaLaunchKernel | corr=2
        stream 7 | {9 * MS} {13 * MS} | a | corr=1
        stream 7 | {13 * MS} {17 * MS} | a | corr=2
    """) == [(9 * MS, 13 * MS), (13 * MS, 17 * MS)]


def test_one_late_kernel_shows_no_queue() -> None:
    assert windows(f"""
        main     | 0 {9 * MS} | ProfilerStep#1
        main     | {5 * MS} {5 * MS + 10} | cudaLaunchKernel | corr=1
        stream 7 | {8 * MS} {8 * MS + 20} | a | corr=1
    """) == [(0, 9 * MS)]


def test_late_work_with_pauses_was_not_queued() -> None:
    assert windows(f"""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | cudaLaunchKernel | corr=1
        main     | 20  30 | cudaLaunchKernel | corr=2
        stream 7 | {5 * MS} {5 * MS + 10} | a | corr=1
        stream 7 | {9 * MS} {9 * MS + 10} | a | corr=2
    """) == [(0, 9 * MS + 10)]


def test_a_device_that_begins_at_once_was_idle() -> None:
    assert windows("""
        main     |   0 100 | ProfilerStep#1
        main     |  10  20 | cudaLaunchKernel | corr=1
        stream 7 |  50 150 | a                | corr=1
    """) == [(0, 150)]


def test_a_launch_that_itself_takes_long_does_not_wait_for_a_device() -> None:
    assert windows(f"""
        main     |   0 {9 * MS} | ProfilerStep#1
        main     |  10 {8 * MS} | cudaLaunchKernel | corr=1
        stream 7 | {8 * MS} {9 * MS} | a           | corr=1
    """) == [(0, 9 * MS)]


def test_clocks_that_differ_throughout_are_no_earlier_work() -> None:
    assert (
        windows(f"""
        main     |    0  100 | ProfilerStep#1
        main     |   10   20 | cudaLaunchKernel | corr=1
        main     |   60   70 | cudaLaunchKernel | corr=2
        main     | {5 * MS} {5 * MS + 100} | ProfilerStep#2
        main     | {5 * MS} {5 * MS + 10} | cudaLaunchKernel | corr=3
        stream 7 | {3 * MS} {3 * MS + 20} | a | corr=1
        stream 7 | {3 * MS + 50} {3 * MS + 70} | a | corr=2
        stream 7 | {8 * MS} {8 * MS + 20} | a | corr=3
    """)[0][0]
        == 0
    )


def test_recorded_work_of_the_step_before_is_not_of_the_first() -> None:
    assert windows("""
        main     |   0  10 | cudaLaunchKernel | corr=1
        main     |  50 150 | ProfilerStep#1
        main     |  60  70 | cudaLaunchKernel | corr=2
        stream 7 |  20 120 | a                | corr=1
        stream 7 | 120 220 | a                | corr=2
    """) == [(120, 220)]
