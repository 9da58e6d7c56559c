"""Costs that a process pays once: which calls count, and which recur."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.device.one_off_costs import one_off_costs
from stepscope.testing import drawn_trace

WORK = """
    main     | {0}00 {0}01 | cudaLaunchKernel | corr={0}
    stream 7 | {0}02 {0}90 | mm               | corr={0}
"""


def once(*steps: str) -> list[str]:
    """The calls that count in steps of 100 ms, each with 88 ms of work; times in ms, from 0 to 99."""
    lines = []
    for number, text in enumerate(steps, 1):
        lines.append(f"main | {number}00 {number + 1}00 | ProfilerStep#{number}")
        lines += WORK.format(number).splitlines()
        numbered = text.replace("corr=", f"corr={number}")  # ids are unique in a file
        for line in filter(None, map(str.strip, numbered.splitlines())):
            track, span, *rest = line.split("|")
            begin, end = (100 * number + float(time) for time in span.split())
            lines.append("|".join([track, f" {begin} {end} ", *rest]))
    trace = annotate(drawn_trace("\n".join(in_us(line) for line in lines if line.strip())))
    costs = one_off_costs(trace, 0)
    return [trace.events.text("name")[row] or "" for row in costs.calls.tolist()]


def in_us(line: str) -> str:
    track, span, *rest = line.split("|")
    begin, end = (round(1000 * float(time)) for time in span.split())
    if "cudaLaunchKernel" in line and "slow" not in line:
        end = min(end, begin + 900)  # of microseconds: a launch that loads nothing
    return "|".join([track, f" {begin} {end} ", *rest])


@pytest.mark.parametrize(
    "name",
    [
        *("cuModuleLoadData", "cuModuleUnload", "cuLibraryLoadData", "cudaStreamCreateWithFlags"),
        *("cublasCreate_v2", "cudnnDestroy", "ncclCommInitRank", "cuCtxCreate_v2", "cudaGraphInstantiate"),
        *("hipModuleLoad", "rocblas_create_handle", "cuLinkCreate_v2", "nvrtcCompileProgram"),
        *("zeModuleCreate", "zeContextCreate", "urProgramBuildExp", "urKernelCreate"),
    ],
)
def test_setup_and_teardown_count_by_their_name(name: str) -> None:
    assert once(f"main | 90 90.4 | {name} | cat=runtime") == [name]


@pytest.mark.parametrize("name", ["cudaGetDeviceProperties_v2", "hipDeviceGetAttribute"])
def test_other_calls_that_start_nothing_count_if_they_are_long(name: str) -> None:
    assert once(f"main | 90 92 | {name} | cat=runtime") == [name]
    assert once(f"main | 90 90.4 | {name} | cat=runtime") == []


@pytest.mark.parametrize("name", ["cudaFree", "cudaMalloc", "cudaHostAlloc", "hipMalloc"])
def test_memory_counts_if_it_takes_as_long_as_a_context(name: str) -> None:
    assert once(f"main | 10 70 | {name} | cat=runtime") == [name]
    assert once(f"main | 10 15 | {name} | cat=runtime") == []


def test_memory_before_the_first_launch_or_after_all_work_counts() -> None:
    before = "main | -8 -2 | cudaFree | cat=runtime"
    after = "main | 92 98 | cudaFreeHost | cat=runtime"
    assert once(before + "\n" + after) == ["cudaFree", "cudaFreeHost"]


def test_memory_in_one_of_three_steps_counts() -> None:
    call = "main | 10 15 | cudaMalloc | cat=runtime"
    assert once("", call, "") == ["cudaMalloc"]
    assert once("", call, call) == []
    assert once("", call) == []


@pytest.mark.parametrize(
    "name", ["cudaStreamSynchronize", "cudaMemcpyAsync", "cudaLaunchHostFunc", "cudaEventQuery", "aten::mm"]
)
def test_waits_and_work_are_no_setup(name: str) -> None:
    assert once(f"main | 10 70 | {name}") == []


def test_what_each_step_pays_recurs() -> None:
    for name in ("cudaStreamCreate", "cuModuleLoadData", "cudaGetDeviceCount"):
        call = f"main | 90 95 | {name} | cat=runtime"
        assert once(call, call, call) == []
        assert once(call, call) == []
        assert once(call, "", "") == [name]


def test_a_slow_launch_counts_if_its_kernel_is_new() -> None:
    launch = """
        main     | 91 95 | cudaLaunchKernel | corr={0} slow=1
        stream 7 | 96 97 | {1}              | corr={0}
    """
    assert once(launch.format(8, "relu")) == ["cudaLaunchKernel"]
    assert once(*[launch.format(8, "relu")] * 3) == []  # as where the queue is full
    assert once(launch.format(8, "mm")) == []


@pytest.mark.parametrize(("second", "is_loading"), [(52, True), (60, False)])
def test_the_first_call_of_an_operator_that_loads_a_library_counts(second: float, is_loading: bool) -> None:
    """Besides what setup it calls 26 ms, of which the next call has 2, or 10."""
    text = f"""
        main | 10 40       | aten::cudnn_convolution
        main | 11 15       | cudaStreamCreateWithFlags | cat=runtime
        main | 50 {second} | aten::cudnn_convolution
    """
    assert once(text) == ["aten::cudnn_convolution" if is_loading else "cudaStreamCreateWithFlags"]


def test_what_runs_while_a_graph_is_captured_counts() -> None:
    text = """
        main | 10 11 | cudaStreamBeginCapture | cat=runtime
        main | 12 20 | aten::mm
        main | 13 14 | cudaLaunchKernel
        main | 21 22 | cudaStreamEndCapture   | cat=runtime
        main | 30 40 | aten::mm
    """
    assert once(text) == ["cudaStreamBeginCapture", "aten::mm", "cudaStreamEndCapture"]
    assert once(text, text, text) == []  # as where each step captures anew


def test_a_convolution_that_waits_times_algorithms() -> None:
    benchmark = """
        main     | 91 96   | aten::cudnn_convolution
        main     | 92 92.5 | cudaLaunchKernel | corr=8
        stream 7 | 93 94   | algorithm        | corr=8
        main     | 94 95   | cudaEventSynchronize
    """
    assert once(benchmark) == ["aten::cudnn_convolution"]
    assert once(benchmark.replace("aten::cudnn_convolution", "aten::item")) == []
    line = "stepscope.lines: /me/convnext/train.py:9 | cat=cpu_op"
    assert once(benchmark.replace("aten::cudnn_convolution", line)) == []
    assert once(benchmark, benchmark) == []


def test_compilation_in_one_step_of_three_counts() -> None:
    compiles = "main | 10 80 | _compile.compile_inner (dynamo_timed)"
    assert once("", compiles, "") == ["_compile.compile_inner (dynamo_timed)"]
    assert once("", compiles, compiles) == []
    assert once("", compiles) == []


@pytest.mark.parametrize(("region", "count"), [("0/0", 1), ("0/1", 0)])
def test_compilation_in_one_step_counts_if_no_function_was_compiled_before(region: str, count: int) -> None:
    compiles = "main | 10 80 | _compile.compile_inner (dynamo_timed)"
    assert len(once(f"{compiles}\nmain | 80 95 | Torch-Compiled Region: {region}")) == count


def test_what_recording_or_loading_costs_a_call_counts_in_each_step() -> None:
    """As Kineto writes CUPTI's notes: apart from all threads."""
    overhead = """
        main      | 10 16 | cudaMemcpyAsync | cat=runtime
        main      | 92 94 | cudaEventRecord | cat=runtime
        thread -1 | {} | {} | cat={}
    """
    steps = [overhead.format(*noted, "other") for noted in (("11 16", "Activity Buffer Request"),) * 3]
    assert once(*steps) == ["cudaMemcpyAsync"] * 3
    assert once(overhead.format("10 16", "Lazy Function Loading", "other")) == ["cudaMemcpyAsync"]
    assert once(overhead.format("10 12", "Activity Buffer Request", "other")) == []
    assert once(overhead.format("10 16", "Command Buffer Full", "other")) == []
    assert once(overhead.format("10 16", "Resource", "annotation")) == []
