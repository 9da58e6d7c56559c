"""When a device computes nothing, and why."""

from __future__ import annotations

from facts import us

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace


def idle(text: str) -> list[tuple[object, ...]]:
    trace: Trace = annotate(drawn_trace(text))
    return sorted(us(trace, "idle", "start_ns", "end_ns", "cause"))


def test_until_the_call_the_host_is_to_blame_and_then_the_launch() -> None:
    assert idle("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  12 | cudaLaunchKernel | corr=1
        main     | 50  52 | cudaLaunchKernel | corr=2
        stream 7 | 20  40 | a                | corr=1
        stream 7 | 60 100 | b                | corr=2
    """) == [(0, 10, "host"), (10, 20, "launch"), (40, 50, "host"), (50, 60, "launch")]


def test_while_the_loop_loads_data_the_device_waits_for_data() -> None:
    assert idle("""
        main     |  0 100 | ProfilerStep#1
        main     |  0  30 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     | 40  42 | cudaLaunchKernel | corr=1
        stream 7 | 50 100 | a                | corr=1
    """) == [(0, 30, "data"), (30, 40, "host"), (40, 50, "launch")]


def test_a_synchronization_is_to_blame_until_it_returns_and_then_the_host() -> None:
    assert idle("""
        main     |  0 100 | ProfilerStep#1
        main     |  0   2 | cudaLaunchKernel      | corr=1
        main     |  5  33 | cudaStreamSynchronize
        main     | 45  47 | cudaLaunchKernel      | corr=2
        stream 7 |  2  30 | a                     | corr=1
        stream 7 | 50 100 | b                     | corr=2
    """) == [(0, 2, "launch"), (30, 33, "synchronization"), (33, 45, "host"), (45, 50, "launch")]


def test_a_copy_that_blocks_the_caller_is_a_synchronization() -> None:
    assert idle("""
        main     |  0 100 | ProfilerStep#1
        main     |  0   2 | cudaLaunchKernel | corr=1
        main     |  5  42 | cudaMemcpyAsync  | corr=2
        main     | 60  61 | cudaLaunchKernel | corr=3
        stream 7 |  2  30 | a                | corr=1
        stream 7 | 30  40 | Memcpy DtoH      | corr=2
        stream 7 | 61 100 | b                | corr=3
    """) == [(0, 2, "launch"), (40, 42, "synchronization"), (42, 60, "host"), (60, 61, "launch")]


def test_time_in_which_only_communication_runs_is_not_computing() -> None:
    assert idle("""
        main      |  0 100 | ProfilerStep#1
        main      |  0   1 | cudaLaunchKernel        | corr=1
        main      |  1   2 | cudaLaunchKernel        | corr=2
        stream 7  |  0  50 | a                       | corr=1
        stream 20 | 40 100 | ncclDevKernel_AllReduce | corr=2
    """) == [(50, 100, "communication")]


def test_while_the_host_communicates_and_computes_nothing_the_device_waits_for_that() -> None:
    """As Gloo exchanges gradients of a GPU."""
    text = """
        main      |  0 100 | ProfilerStep#1
        main      |  0   1 | cudaLaunchKernel | corr=1
        main      | 80  81 | cudaLaunchKernel | corr=2
        main      | 60  65 | aten::add
        gloo      | 40  70 | gloo:all_reduce  | cat=annotation
        stream 7  |  0  30 | a                | corr=1
        stream 7  | 81 100 | b                | corr=2
    """
    assert idle(text) == [
        *((30, 40, "host"), (40, 60, "communication"), (60, 65, "host")),
        *((65, 70, "communication"), (70, 80, "host"), (80, 81, "launch")),
    ]
    (step,) = annotate(drawn_trace(text))["steps"].rows()
    assert (step["device_busy_ns"], step["device_idle_ns"]) == (49_000, 51_000)


def test_the_last_steps_window_lasts_until_its_device_work_ends() -> None:
    assert idle("""
        main     |   0 100 | ProfilerStep#1
        main     |  10  12 | cudaLaunchKernel | corr=1
        main     |  20  22 | cudaLaunchKernel | corr=2
        stream 7 |  10  90 | a                | corr=1
        stream 7 | 120 150 | b                | corr=2
    """) == [(0, 10, "host"), (90, 120, "launch")]


def test_work_of_the_step_before_keeps_the_device_busy_in_this_one() -> None:
    assert idle("""
        main     |   0 100 | ProfilerStep#1
        main     | 100 200 | ProfilerStep#2
        main     |   0   1 | cudaLaunchKernel | corr=1
        main     | 150 151 | cudaLaunchKernel | corr=2
        stream 7 |   0 140 | a                | corr=1
        stream 7 | 151 200 | b                | corr=2
    """) == [(140, 150, "host"), (150, 151, "launch")]


def test_without_a_device_nothing_idles() -> None:
    assert idle("main | 0 100 | aten::mm") == []


def test_a_thread_that_launches_nothing_and_waits_is_not_to_blame() -> None:
    assert idle("""
        main     | 0 100 | ProfilerStep#1
        main     | 0   2 | cudaLaunchKernel     | corr=1
        watchdog | 0 100 | cudaEventSynchronize
        stream 7 | 2  30 | a                    | corr=1
    """) == [(0, 2, "launch"), (30, 100, "host")]


def test_work_that_was_launched_first_may_begin_last() -> None:
    """What waits counts, whichever work ends the gap."""
    assert idle("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  12 | cudaLaunchKernel | corr=1
        main     | 50  52 | cudaLaunchKernel | corr=2
        stream 7 | 60  70 | a                | corr=2
        stream 9 | 60 100 | b                | corr=1
    """) == [(0, 10, "host"), (10, 60, "launch")]


def test_between_two_loads_the_loop_does_something_else() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert idle(f"""
        main     |  0 100 | ProfilerStep#1
        main     |  0  10 | {loader}
        main     | 40  50 | {loader}
        main     | 50  52 | cudaLaunchKernel | corr=1
        stream 7 | 54 100 | a                | corr=1
    """) == [(0, 10, "data"), (10, 40, "host"), (40, 50, "data"), (50, 54, "launch")]


def test_a_launch_that_loads_its_kernel_has_launched_nothing_until_it_returns() -> None:
    assert idle("""
        main     |    0 5000 | ProfilerStep#1
        main     |    0 3000 | cudaLaunchKernel | corr=1
        stream 7 | 3010 5000 | a                | corr=1
    """) == [(0, 3000, "one_off"), (3000, 3010, "launch")]


def test_a_graph_is_launched_when_the_call_returns() -> None:
    assert idle("""
        main     |   0 1000 | ProfilerStep#1
        main     |   0  400 | cudaGraphLaunch | corr=1
        stream 7 | 405  600 | a               | corr=1
        stream 7 | 610 1000 | b               | corr=1
    """) == [(0, 400, "host"), (400, 405, "launch"), (600, 610, "launch")]


def test_with_two_clocks_that_differ_by_much_no_cause_is_certain() -> None:
    """The device's clock is early by 5 us, which is little, or by 60 us."""
    for early, causes in ((5, {"host", "launch"}), (60, {"unknown"})):
        lines = ["main | 0 1000 | ProfilerStep#1"]
        for at in range(100, 1000, 100):
            start = at + 10 - early
            lines.append(f"main | {at} {at + 5} | cudaLaunchKernel | corr={at}")
            lines.append(f"stream 7 | {start} {start + 40} | k | corr={at}")
        assert {cause for _, _, cause in idle("\n".join(lines))} == causes
