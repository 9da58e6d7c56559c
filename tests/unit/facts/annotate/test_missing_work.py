"""Device work that a recorder lost: counted, and kept out of what a report says."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from facts import us, warning_codes

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps import missing_work
from stepscope.facts.annotate.steps.missing_work import (
    LaunchCalls,
    complete_steps,
    launch_calls,
    notes_on_missing,
    warn_missing,
    work_is_missing,
    work_of_calls,
)
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.report_facts import summarize
from stepscope.graph import build_graph
from stepscope.testing import drawn_trace
from stepscope.trace.missing_records import NOTES, says_records_missing
from stepscope.trace.schema import STEPS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

# -- what each call of an API does


@pytest.mark.parametrize(
    ("call", "starts_work"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cuLaunchKernelEx", True),
        ("hipExtModuleLaunchKernel", True),
        ("musaLaunchKernel", True),
        ("aclrtLaunchKernelWithConfig", True),
        ("urEnqueueKernelLaunch", True),
        ("zeCommandListAppendLaunchKernel", True),
        ("cudaGraphLaunch", True),
        ("cudaLaunchCooperativeKernel", False),
        ("cudaLaunchHostFunc", False),
        ("cudaMemsetAsync", False),
        ("cudaMemcpyAsync", False),
        ("cudaStreamIsCapturing", False),
    ],
)
def test_calls_that_always_start_work(call: str, starts_work: bool) -> None:
    trace = annotate(
        drawn_trace(f"""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | {call}           | corr=1 cat=runtime
        main     | 30  40 | cudaLaunchKernel | corr=2
        main     | 70  90 | cudaDeviceSynchronize
        stream 7 | 50  60 | sgemm            | corr=2
        """)
    )
    assert warning_codes(trace) == ({"work_missing": 1} if starts_work else {})


def test_what_a_stream_captures_starts_nothing() -> None:
    """A backward thread launches in the capture too, and a capture may begin before the recording."""
    trace = annotate(
        drawn_trace("""
        main     |   0 300 | ProfilerStep#1
        main     |  10  15 | cudaLaunchKernel      | corr=1
        main     |  20  25 | cudaStreamEndCapture
        main     |  30  35 | cudaLaunchKernel      | corr=2
        main     |  40  45 | cudaStreamBeginCapture
        autograd |  50  55 | cudaLaunchKernel      | corr=3
        main     |  60  65 | cudaStreamEndCapture
        main     | 200 290 | cudaDeviceSynchronize
        stream 7 |  70  80 | sgemm                 | corr=2
        """)
    )
    calls = launch_calls(trace, trace.events["step"])
    assert len(calls.rows) == 3
    assert not calls.missing.any()
    assert not warning_codes(trace)


def test_a_driver_call_inside_a_launch_has_its_work() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | cudaLaunchKernel | corr=1
        main     | 12  18 | cuLaunchKernel   | corr=2
        stream 7 | 50  60 | sgemm            | corr=2
        """)
    )
    assert not warning_codes(trace)


def test_kernels_without_a_link_to_their_launches_are_not_missing() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | cudaLaunchKernel | corr=1
        main     | 20  30 | cudaLaunchKernel | corr=2
        main     | 80  90 | cudaDeviceSynchronize
        stream 7 | 40  50 | sgemm            | corr=1001
        stream 7 | 50  60 | sgemm            | corr=1002
        """)
    )
    assert set(warning_codes(trace)) == {"unlinked_device_work"}


def test_work_that_ends_after_the_recording_is_not_lost() -> None:
    text = """
        main     |  0  100 | ProfilerStep#1
        main     | 10   20 | cudaLaunchKernel | corr=1
        main     | 30   40 | cudaLaunchKernel | corr=2
        stream 7 | 20  100 | sgemm            | corr=1
    """
    assert warning_codes(annotate(drawn_trace(text))) == {"work_after_recording": 1}
    waited = text + "main | 50 90 | cudaDeviceSynchronize"
    assert warning_codes(annotate(drawn_trace(waited))) == {"work_missing": 1}


def test_a_copy_counts_where_most_by_the_same_call_have_work() -> None:
    lines = ["main | 0 1000 | ProfilerStep#1", "main | 900 990 | cudaDeviceSynchronize"]
    for copy in range(4):
        lines.append(f"main | {100 * copy} {100 * copy + 5} | cudaMemcpyAsync | corr={copy}")
        lines.append(f"main | {100 * copy + 10} {100 * copy + 15} | cudaLaunchKernel | corr={copy + 10}")
    lines += [
        f"stream 7 | {100 * copy + 20} {100 * copy + 30} | Memcpy HtoD | corr={copy}" for copy in range(3)
    ]
    lines += [
        f"stream 7 | {100 * copy + 40} {100 * copy + 50} | sgemm | corr={copy + 10}" for copy in range(3)
    ]
    (warning,) = annotate(drawn_trace("\n".join(lines)))["warnings"].rows()
    assert warning["message"].startswith("2 of 5 launches")


# -- what a report says


def stepped(lost: set[int], graphs: bool = False, steps: int = 3) -> Trace:
    """Steps of 10 ms with 10 kernels of 0.5 ms each; those of the `lost` launches are not recorded."""
    call = "cudaGraphLaunch" if graphs else "cudaLaunchKernel"
    lines = []
    for step in range(steps):
        begin = 10_000 * step
        lines.append(f"main | {begin} {begin + 9_990} | ProfilerStep#{step}")
        lines.append(f"main | {begin + 9_800} {begin + 9_980} | cudaDeviceSynchronize")
        for number in range(10 * step, 10 * step + 10):
            at = begin + 900 * (number % 10) + 100
            lines.append(f"main | {at} {at + 10} | {call} | corr={number}")
            if number not in lost:
                lines.append(f"stream 7 | {at + 50} {at + 550} | sgemm | corr={number}")
    return annotate(drawn_trace("\n".join(lines)))


def said(trace: Trace) -> tuple[str, list[str]]:
    """The verdict, and the notes at the top of the report."""
    summary = summarize(trace)
    return summary.verdict.sentence, [one.message for one in summary.warnings if one.code in NOTES]


def test_a_session_whose_first_kernels_are_lost_is_judged_by_its_complete_steps() -> None:
    trace = stepped(lost=set(range(13)))
    verdict, notes = said(trace)
    assert notes == [
        "13 of 30 launches lack recorded device work; the figures are of step 2, whose launches all "
        "have theirs"
    ]
    assert us(trace, "steps", "step", "device_busy_ns") == [(2, 5000)]
    assert "50% of" in verdict


def test_a_file_whose_device_is_silent_is_not_bound_by_the_cpu() -> None:
    assert said(stepped(lost=set(range(30)))) == (
        "Cannot tell what limits the step. Reason: 30 of 30 launches lack recorded device work.",
        ["30 of 30 launches lack recorded device work"],
    )


@pytest.mark.parametrize(
    ("call", "silent"),
    [
        ("cudaStreamSynchronize", True),
        ("nccl:all_reduce", True),
        ("aten::pin_memory", True),
        ("aten::cudnn_convolution", True),
        ("aten::_scaled_dot_product_flash_attention", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", False),
        ("aten::mkldnn_convolution", False),
        ("aten::cudnn_is_acceptable", False),  # by aten::gru and aten::lstm on a CPU
        ("cudaDeviceSynchronize", False),  # by the profiler itself
        ("gloo:all_reduce", False),
        ("aten::_mps_convolution", True),
        ("aten::_lstm_mps", True),
        ("aten::_scaled_dot_product_attention_math_for_mps", True),
        ("aten::convolution_overrideable", True),  # of XPUs, HPUs and other backends outside of PyTorch
        ("npu::npu_format_cast", True),
        ("aten::_local_scalar_dense", False),
    ],
)
def test_without_any_launch_a_call_may_show_that_a_device_is_silent(call: str, silent: bool) -> None:
    trace = annotate(drawn_trace(f"main | 0 100 | ProfilerStep#1\nmain | 10 90 | {call}"))
    assert warning_codes(trace) == ({"work_missing": 1} if silent else {})


@pytest.mark.parametrize(("us", "silent"), [(4, False), (900, False), (4000, True)])
def test_what_reads_a_value_for_milliseconds_waits_for_a_device(us: int, silent: bool) -> None:
    trace = annotate(
        drawn_trace(f"""
        main | 0 9000 | ProfilerStep#1
        main | 10 100 | aten::mm
        main | 200 {200 + us} | aten::_local_scalar_dense
    """)
    )
    assert warning_codes(trace) == ({"work_missing": 1} if silent else {})


@pytest.mark.parametrize(("inside", "silent"), [("", True), ("main | 20 30 | aten::mm", False)])
def test_ranges_alone_do_not_show_what_limits_the_step(inside: str, silent: bool) -> None:
    """Such as of `nsys profile --trace nvtx`."""
    trace = annotate(
        drawn_trace(f"""
        main | 0 100 | step 1    | cat=annotation
        main | 0  60 | forward   | cat=annotation
        main | 60 90 | backward  | cat=annotation
        {inside}
    """)
    )
    verdict, _ = said(trace)
    assert ("Cannot tell what limits the step. Reason: the file has ranges" in verdict) == silent


@pytest.mark.parametrize(("early_us", "waits"), [(300, True), (4000, True), (4000, False)])
def test_a_clock_that_is_wrong_by_more_than_a_step_withholds_the_verdict(early_us: int, waits: bool) -> None:
    """Steps of 1 ms, in which the device works 0.9; the loop may wait for it, or not."""
    lines = []
    for step in range(5):
        begin, length = (1000 * step, 990) if waits else (100 * step, 90)
        works = 1000 * step + 30 - early_us
        lines.append(f"main | {begin} {begin + length} | ProfilerStep#{step}")
        lines.append(f"main | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={step}")
        lines.append(f"stream 7 | {works} {works + 900} | sgemm | corr={step}")
        if waits:
            lines.append(f"main | {begin + 30} {begin + 940} | cudaStreamSynchronize")
    trace = annotate(drawn_trace("\n".join(lines)))
    assert ("Cannot tell" in said(trace)[0]) == (early_us > 1000)
    assert (build_graph(trace).tasks["duration_ns"] >= 0).all()


@pytest.mark.parametrize(("lost", "kept"), [(1, [0, 3]), (4, [0, 1, 2, 3])])
def test_kernels_whose_durations_were_lost_count_as_missing(lost: int, kept: list[int]) -> None:
    """Of one step, and so the end of its work, with which the next begins; or of all."""
    lines = []
    for step in range(4):
        begin, us = 1000 * step, 0 if step == 1 or lost == 4 else 600
        lines.append(f"main | {begin} {begin + 990} | ProfilerStep#{step}")
        lines.append(f"main | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={step}")
        lines.append(f"main | {begin + 30} {begin + 900} | cudaStreamSynchronize")
        lines.append(f"stream 7 | {begin + 30} {begin + 30 + us} | sgemm | corr={step}")
    drawn = drawn_trace("\n".join(lines))
    assert "launches lack" not in said(annotate(drawn))[0]  # the recorder may have meant 0
    trace = annotate(drawn.with_warnings([("no_duration", "a slice has no valid duration", lost)]))
    assert trace["steps"]["step"].tolist() == kept
    assert ("Cannot tell" in said(trace)[0]) == (lost == 4)


@pytest.mark.parametrize(
    ("gpu", "around", "silent"),
    [
        ((), "Optimizer.step#SGD.step", False),
        (({"name": "NVIDIA A100"},), "Optimizer.step#SGD.step", True),
        (({"name": "NVIDIA A100"},), "ema.py(9): update", False),  # averages weights on any device
    ],
)
def test_an_optimizer_for_devices_shows_that_a_listed_device_is_silent(gpu, around, silent) -> None:
    lines = f"main | 0 100 | ProfilerStep#1\nmain | 5 95 | {around}\nmain | 9 90 | aten::_foreach_add_"
    trace = annotate(drawn_trace(lines, devices=gpu))
    assert warning_codes(trace) == ({"work_missing": 1} if silent else {})


def test_a_step_without_any_record_is_left_out() -> None:
    lines = [f"main | {1000 * step} {1000 * step + 990} | ProfilerStep#{step}" for step in range(4)]
    begins = [1000 * step + 50 * place for step in (0, 1, 3) for place in range(10)]
    lines += [f"main | {begin} {begin + 40} | aten::mm" for begin in begins]
    trace = annotate(drawn_trace("\n".join(lines)))
    assert trace["steps"]["step"].tolist() == [0, 1, 3]
    assert warning_codes(trace) == {"cut_off_step": 1}


def test_graphs_whose_kernels_are_not_recorded_leave_idle_time_unknown() -> None:
    trace = stepped(lost=set(range(0, 30, 2)), graphs=True)
    verdict, _ = said(trace)
    assert {row["cause"] for row in trace["idle"].rows()} == {"unknown"}
    assert "15 of 30 graph launches lack some recorded device work" in verdict
    (device,) = summarize(trace).devices
    assert {cause for cause, ms in device.idle_ms.items() if ms} == {"unknown"}


def test_a_graph_that_lost_some_of_its_kernels_leaves_its_step_out() -> None:
    """A graph of three kernels per step; in step 1 one of them is not recorded."""
    lines = []
    for step in range(4):
        begin = 1000 * step
        lines.append(f"main | {begin} {begin + 990} | ProfilerStep#{step}")
        lines.append(f"main | {begin + 10} {begin + 20} | cudaGraphLaunch | corr={step}")
        lines.append(f"main | {begin + 30} {begin + 900} | cudaStreamSynchronize")
        for number in range(3):
            at = begin + 40 + 200 * number
            if (step, number) != (1, 2):
                lines.append(f"stream 7 | {at} {at + 200} | k | corr={step}")
    trace = annotate(drawn_trace("\n".join(lines)))
    _, notes = said(trace)
    assert notes[0].startswith(
        "1 of 4 graph launches lack some recorded device work; the figures are of steps 0, 3"
    )
    assert us(trace, "steps", "step", "device_busy_ns") == [(0, 600), (3, 600)]


def test_graphs_launched_in_another_order_lost_nothing() -> None:
    """Each step launches a graph of three kernels and one of one; step 1 the second first."""
    lines = []
    for step in range(4):
        begin = 1000 * step
        lines.append(f"main | {begin} {begin + 990} | ProfilerStep#{step}")
        for number, kernels in enumerate((1, 3) if step == 1 else (3, 1)):
            at, call = begin + 10 + 400 * number, 2 * step + number
            lines.append(f"main | {at} {at + 10} | cudaGraphLaunch | corr={call}")
            for kernel in range(kernels):
                lines.append(f"stream 7 | {at + 20 + 50 * kernel} {at + 70 + 50 * kernel} | k | corr={call}")
    assert "work_missing" not in {
        row["code"] for row in annotate(drawn_trace("\n".join(lines)))["warnings"].rows()
    }


def test_notes_of_a_recorder_withhold_the_verdict_where_launches_do_not_show_which() -> None:
    trace = drawn_trace("""
        main     | 0  100 | ProfilerStep#1
        stream 7 | 20  40 | sgemm
    """).with_warnings([("records_missing", "the recorder reported: 9 kernel records were dropped", 1)])
    verdict, notes = said(annotate(trace))
    assert verdict.startswith("Cannot tell what limits the step. Reason: the recorder lost records")
    assert notes[0] == "the recorder reported: 9 kernel records were dropped"


@pytest.mark.parametrize(
    ("note", "lost"),
    [
        ("CUDA device 0: 1200 CUDA kernel records were dropped.", True),
        ("Not all CUDA events might have been collected.", True),
        ("No CUDA events collected. Does the process use CUDA?", True),
        ("CUDA profiling might have not been started correctly.", True),
        ("Detected GPU events dropped on host7: Profiler has collected 9 driver events; 4 dropped.", True),
        ("Failed to subscribe to CUPTI: CUPTI_ERROR_NOT_INITIALIZED", True),
        ("Record counts: Out-of-range = 3, GPU stopped early? = 1", True),
        ("4 activity records were dropped", True),
        ("hip: three records were lost", True),
        ("roctracer could not initialize", True),
        ("the device's buffer is full", True),
        ("XPU: TRUNCATED", True),
        ("Record counts: Out-of-range = 3, GPU stopped early? = 0", False),
        ("CUPTI records dropped: 0", False),
        ("chip records were lost", False),
        ("CUDA device 0: 0 CUDA kernel records were dropped.", False),
        ("Number of CUPTI events produced: 1200, CUPTI buffers: 4.", False),
        ("Not all NVTX events might have been collected.", False),
        ("Some OS runtime events on GPU threads were lost.", False),
        ("GPU Metrics [0]: sampling cannot be started: insufficient privilege.", False),
        ("Profiling has started.", False),
    ],
)
def test_what_a_recorder_says_of_lost_records(note: str, lost: bool) -> None:
    assert says_records_missing(note) == lost


# -- a family of recordings with known truth


@dataclass
class Loop:
    """Steps with known windows and busy times, us; some records of their kernels may be lost."""

    ends: list[int] = field(default_factory=lambda: [0])
    spans: list[tuple[int, int]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    def busy(self, step: int) -> int:
        begin, end = self.ends[step], self.ends[step + 1]
        return sum(max(0, min(b, end) - max(a, begin)) for a, b in self.spans)

    def length(self, step: int) -> int:
        return self.ends[step + 1] - self.ends[step]

    def trace(self, lost: set[int]) -> Trace:
        kept = [line for number, line in enumerate(self.kernels) if number not in lost]
        return annotate(drawn_trace("\n".join([*self.lines, *kept])))


def generated_loop(chance: random.Random) -> Loop:
    """Steps that run ahead of the device, or wait for it; kernels, graphs and fills."""
    loop, clock, free, number = Loop(), 0, 0, 0
    slow, waits = chance.random() < 0.5, chance.random() < 0.5
    for step in range(chance.randint(3, 8)):
        begin = clock
        for _ in range(chance.randint(3, 9)):
            clock += chance.randint(100, 900)
            call = chance.choice(["cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"])
            loop.lines.append(f"main | {clock} {clock + 20} | {call} | corr={number}")
            start = max(free, clock + 30)
            free = start + chance.randint(900, 2500) if slow else start + chance.randint(50, 400)
            loop.kernels.append(f"stream 7 | {start} {free} | k | corr={number}")
            loop.spans.append((start, free))
            number += 1
            clock += chance.randint(30, 300)
        loop.lines.append(f"main | {clock} {clock + 3} | cudaMemsetAsync")  # of no bytes
        if waits:
            loop.lines.append(f"main | {clock + 5} {max(clock, free) + 10} | cudaDeviceSynchronize")
            clock = max(clock, free) + 15
        clock += chance.randint(10, 500)
        loop.lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
        loop.ends.append(max(clock, free))
    return loop


def lost_records(chance: random.Random, count: int) -> set[int]:
    """None, the first ones, a piece in the middle, or any."""
    kind = chance.choice(["none", "first", "piece", "any", "any", "all"])
    first = chance.randrange(count)
    return {
        "none": set[int](),
        "first": set(range(chance.randint(1, count))),
        "piece": set(range(first, min(first + chance.randint(1, 9), count))),
        "any": {number for number in range(count) if chance.random() < chance.choice([0.02, 0.1, 0.5])},
        "all": set(range(count)),
    }[kind]


def check_no_false_word(seed: int) -> None:
    chance = random.Random(seed)
    loop = generated_loop(chance)
    lost = lost_records(chance, len(loop.kernels))
    trace = loop.trace(lost)
    summary, codes = summarize(trace), warning_codes(trace)
    if "work_missing" in codes:
        assert lost
        check_withheld(summary, loop)
        return
    for row in trace["steps"].rows():
        step, tolerance = row["step"], 0.02 * loop.length(row["step"])
        assert abs((row["window_end_ns"] - row["window_start_ns"]) / 1000 - loop.length(step)) <= tolerance
        assert abs(row["device_busy_ns"] / 1000 - loop.busy(step)) <= tolerance
    assert lost or not set(codes) & set(NOTES)


def regular_loop(chance: random.Random) -> tuple[Loop, list[list[str]]]:
    """Steps of the same operators, each with a launch or without; and the records of each launch."""
    loop, clock, records = Loop(), 0, list[list[str]]()
    launches = [chance.random() < 0.7 for _ in range(chance.randint(15, 30))]
    for step in range(chance.randint(5, 8)):
        begin = clock
        for place, launch in enumerate(launches):
            loop.lines.append(f"main | {clock} {clock + 100} | aten::op{place}")
            if launch:
                end = clock + chance.randint(100, 700)
                number, at = len(records), clock + 20
                loop.spans.append((at + 30, end))
                records.append([
                    f"main | {at} {at + 9} | cudaLaunchKernel | corr={number}",
                    f"stream 7 | {at + 30} {end} | k | corr={number}",
                ])  # fmt: skip
            clock += chance.randint(700, 800)
        loop.lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
        loop.ends.append(clock)
    return loop, records


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.0, 0.01, 0.05, 0.3, 1.0])
def test_launches_that_are_lost_with_their_work_are_missed(rate: float, seed: int) -> None:
    """Of all steps some are lost, or of one step all: its operators launch elsewhere."""
    chance = random.Random(seed)
    loop, records = regular_loop(chance)
    count = len(records) // (len(loop.ends) - 1)
    lost = {number for number in range(len(records)) if chance.random() < rate}
    if rate == 1.0:
        lost = set(range(count, 2 * count))
    kept = [line for number, lines in enumerate(records) if number not in lost for line in lines]
    trace = annotate(drawn_trace("\n".join([*loop.lines, *kept])))
    if "work_missing" in warning_codes(trace):
        assert lost
        check_withheld(summarize(trace), loop)
        return
    assert not {number // count for number in lost} & set(trace["steps"]["step"].tolist())
    for row in trace["steps"].rows():
        assert row["device_busy_ns"] / 1000 == loop.busy(row["step"])
    assert bool(lost) == ("steps_left_out" in warning_codes(trace))


def check_withheld(summary: Summary, loop: Loop) -> None:
    assert summary.verdict.bound_by in ("unknown", "device")
    if summary.verdict.bound_by == "device":
        steps = range(len(loop.ends) - 1)
        assert sum(map(loop.busy, steps)) >= 0.88 * sum(map(loop.length, steps))


@pytest.mark.parametrize("seed", range(30))
def test_generated_recordings_with_lost_records(seed: int) -> None:
    check_no_false_word(seed)


@pytest.mark.full(every=3)
@pytest.mark.parametrize("block", range(10))
def test_all_generated_recordings_with_lost_records(block: int) -> None:
    for seed in range(1000 + 40 * block, 1040 + 40 * block):
        check_no_false_word(seed)


# -- part by part


def calls_of(missing: str, pending: str = "", graphs: str = "", unsure: str = "") -> LaunchCalls:
    """Calls, one for each letter; x has the property."""
    rows = np.arange(len(missing))
    masks = [
        np.array([one == "x" for one in (text or "." * len(rows))])
        for text in (missing, pending, graphs, unsure)
    ]
    return LaunchCalls(rows, *masks)


@pytest.mark.parametrize(
    ("missing", "steps", "complete"),
    [
        ("....", "0011", [True, True]),
        ("x...", "0011", [False, True]),
        (".x..", "0011", [False, False]),  # the next step begins when that work ends
        ("..x.", "0011", [True, False]),
        ("x...", "-011", [False, True]),
        ("...x", "001-", [True, True]),
        ("x.", "-0", [False]),
    ],
)
def test_a_step_is_complete_with_its_work_and_what_ends_before_it(
    missing: str, steps: str, complete: list[bool]
) -> None:
    step = np.array([-1 if one == "-" else int(one) for one in steps])
    assert complete_steps(Trace({}), calls_of(missing), step, len(complete)).tolist() == complete


BARE = "main | 0 9 | aten::mm\nmain | 1 2 | cudaLaunchKernel | corr=1\nstream 7 | 4 6 | k | corr=1"


@pytest.mark.parametrize(
    ("calls", "steps", "complete", "found"),
    [
        (calls_of("...."), "0011", "++", {}),
        (
            calls_of("x..."),
            "0011",
            "-+",
            {"steps_left_out": "1 of 4 launches lack recorded device work; the figures are of step 7, whose"},
        ),
        (calls_of("x.x."), "0011", "--", {"work_missing": "2 of 4 launches lack recorded device work"}),
        (calls_of("x.x."), "-011", "--", {"work_missing": "1 of 3 launches lack recorded device work"}),
        (
            calls_of("x...", graphs="xx.."),
            "0011",
            "--",
            {"work_missing": "1 of 2 graph launches lack some recorded device work"},
        ),
        (calls_of("x.x.", graphs="xx.."), "0011", "--", {"work_missing": "2 of 4 launches lack recorded"}),
        (calls_of("...x", "...x"), "0011", "+-", {"steps_left_out": "1 of 4 launches"}),
        (
            calls_of("...x", "...x"),
            "0000",
            "-",
            {"work_after_recording": "1 of 4 launches lack recorded device work: the recording ended"},
        ),
        (
            calls_of("....", graphs="xx..", unsure="x..."),
            "0011",
            "++",
            {"graphs_vary": "1 of 2 graph launches have less recorded"},
        ),
        (calls_of("....", graphs="xx..", unsure="x..."), "-011", "++", {}),
    ],
)
def test_what_steps_lack_is_told(
    calls: LaunchCalls, steps: str, complete: str, found: dict[str, str]
) -> None:
    trace = drawn_trace(BARE).with_table(Table(STEPS, {"step": [7]}))
    step = np.array([-1 if one == "-" else int(one) for one in steps])
    told = warn_missing(trace, calls, step, np.array([one == "+" for one in complete]))
    rows = {row["code"]: row["message"] for row in told["warnings"].rows()}
    assert set(rows) == set(found)
    assert all(rows[code].startswith(text) for code, text in found.items())


def test_lost_records_that_no_launch_shows_are_told() -> None:
    trace = drawn_trace(BARE).with_warnings([("records_missing", "9 were dropped", 1)])
    told = warn_missing(trace, calls_of(".."), np.array([0, 0]), np.array([True]))
    assert work_is_missing(told) == "the recorder lost records, and the file does not show which"
    assert work_is_missing(told, 1) == ""
    assert notes_on_missing(told, 0) == ["9 were dropped", work_is_missing(told)]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([4], "the figures are of step 4, whose launches all have theirs"),
        ([4, 5, 6, 9], "the figures are of steps 4 to 6, 9, whose launches all have theirs"),
    ],
)
def test_steps_that_are_kept_are_named(steps: list[int], text: str) -> None:
    assert missing_work._kept(Trace({"steps": Table(STEPS, {"step": steps})})) == text


@pytest.mark.parametrize(
    ("text", "devices", "silent"),
    [
        (
            "main | 0 9 | forward | cat=annotation",
            (),
            "the file has ranges, and nothing of what runs in them",
        ),
        ("main | 0 9 | ProfilerStep#1", (), ""),
        ("main | 0 9 | aten::mm", (), ""),
        *(
            (f"main | 0 9 | {name}", (), f"the file has no device work, although {name} uses a device")
            for name in (
                "cudaStreamSynchronize",
                "hipEventRecord",
                "cudaStreamWaitEvent",
                "aclrtSynchronizeStream",
                "urQueueFinish",
                "nccl:all_reduce",
                "aten::cudnn_convolution",
                "aten::_cudnn_rnn",
                "aten::miopen_rnn",
                "aten::_pin_memory",
                "aten::_flash_attention_forward",
                "aten::_scaled_dot_product_efficient_attention",
                "aten::_mps_convolution",
                "aten::convolution_overrideable",
                "aten::copy_for_mps",
                "npu::x",
                "hpu::y",
                "xla::z",
                "torch_mlu::w",
            )
        ),
        *(
            (f"main | 0 9 | {name}", (), "")
            for name in (
                "cudaDeviceSynchronize",
                "aten::cudnn_is_acceptable",
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                "xnpu::x",
                "Stream",
            )
        ),
        (
            "main | 0 1000 | aten::_local_scalar_dense",
            (),
            "the file has no device work, although aten::_local_scalar_dense uses a device",
        ),
        ("main | 0 999 | aten::_local_scalar_dense", (), ""),
        (
            "main | 0 9 | Optimizer.step#SGD.step\nmain | 1 2 | aten::_foreach_add_",
            ({"name": "A"},),
            "the file has no device work, although aten::_foreach_add_ uses a device",
        ),
        ("main | 0 9 | Optimizer.step#SGD.step\nmain | 1 2 | aten::_foreach_add_", (), ""),
        ("main | 0 9 | aten::_foreach_add_", ({"name": "A"},), ""),
        (
            "main | 0 9 | Optimizer.step#SGD.step\nmain | 1 2 | aten::_foreach_add_\nmain | 3 4 | cudaMalloc",
            ({"name": "A"},),
            "",
        ),
        ("main | 0 9 | cudaStreamSynchronize\nstream 7 | 1 2 | k", (), ""),
    ],
)
def test_what_shows_that_a_device_is_silent(
    text: str, devices: tuple[dict[str, str], ...], silent: str
) -> None:
    assert missing_work._silent(drawn_trace(text, devices=devices)) == silent


def test_work_of_calls_is_in_their_order() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0  9 | aten::a
        main     |  1  2 | cudaLaunchKernel | corr=1
        main     |  3  4 | cudaLaunchKernel | corr=2
        main     | 10 12 | cudaLaunchKernel | corr=3
        main     | 15 16 | cudaLaunchKernel | corr=4
        stream 7 | 20 30 | c | corr=3
        stream 7 | 30 40 | b | corr=2
        stream 7 | 40 50 | a | corr=1
        stream 7 | 50 60 | d | corr=4
    """)
    )
    call, work = work_of_calls(trace, np.array([0, 3]))
    names = trace.events.text("name")
    assert list(zip(call.tolist(), [names[row] for row in work.tolist()], strict=True)) == [
        (0, "b"),
        (0, "a"),
        (1, "c"),
    ]


@pytest.mark.parametrize(
    ("end", "sync", "pending"),
    [
        (1040, "", [False, True]),  # the device works to the end
        (1060, "", [False, True]),
        (1061, "", [False, False]),  # longer than a millisecond and its longest work
        (1040, "main | 45 50 | cudaDeviceSynchronize", [False, False]),  # which waited for it
        (1040, "main | 35 38 | cudaDeviceSynchronize", [False, True]),
    ],
)
def test_work_of_the_last_calls_may_end_after_the_recording(end: int, sync: str, pending: list[bool]) -> None:
    trace = link_launches(
        drawn_trace(f"""
        main     | 0  2   | cudaLaunchKernel | corr=1
        {sync}
        main     | 40 42  | cudaLaunchKernel | corr=2
        main     | 50 {end} | aten::last
        stream 7 | 5  25  | k | corr=1
        stream 7 | 30 40  | k | corr=1
    """)
    )
    rows = np.flatnonzero(trace.events.text("name").mask("cudaLaunchKernel"))
    missing = np.array([False, True])
    assert missing_work._pending(trace, rows, missing).tolist() == pending
    assert not missing_work._pending(trace, rows, missing & False).any()


def test_operators_that_call_no_device_in_one_step_are_silent() -> None:
    """The second of two operators launches in two of three steps, the first in none."""
    lines = []
    for step in range(3):
        at = 100 * step
        lines += [f"main | {at} {at + 90} | ProfilerStep#{step}", f"main | {at + 1} {at + 5} | aten::view"]
        lines.append(f"main | {at + 10} {at + 20} | aten::mm")
        if step < 2:
            lines += [
                f"main | {at + 12} {at + 14} | cudaLaunchKernel | corr={step}",
                f"stream 7 | {at + 20} {at + 30} | k | corr={step}",
            ]
    trace = link_launches(drawn_trace("\n".join(lines)))
    step = trace.events["start_ns"] // 100_000
    silent = missing_work._silent_operators(trace, step)
    assert (trace.events["start_ns"][silent] // 1000).tolist() == [210]
    once = trace.with_table(trace["launches"].take([0]))  # in one of three steps: too seldom
    assert len(missing_work._silent_operators(once, np.where(step == 1, 1, step))) == 0
    assert len(missing_work._silent_operators(trace, np.minimum(step, 1))) == 0
    other = trace.events["start_ns"] // 1000
    assert len(missing_work._silent_operators(trace, np.where(other >= 200, -1, step))) == 0


def test_replays_are_told_apart_by_what_they_lack() -> None:
    length, name = np.array([5, 7, 9, 5, 9]), np.array([1, 2, 3, 1, 3])
    idle = np.array([2, 9])
    replays = missing_work._Replays(
        *(np.array([3, 2]), np.array([0, 3]), name, length, np.array([21, 14]), idle),
        *(np.array([0, 0]), np.zeros(2, np.bool_)),
    )
    assert replays.kernels(0) == Counter({1: 1, 2: 1, 3: 1})
    assert replays.kernels(1) == Counter({1: 1, 3: 1})
    missing = replays.kernels(0) - replays.kernels(1)
    assert missing == Counter({2: 1})
    assert replays.unusual_idle(1, np.array([0]), missing) == (True, True)  # 7 more, at least half of 7
    less = replays._replace(idle=np.array([2, 5]))
    assert less.unusual_idle(1, np.array([0]), missing) == (False, False)
    after = less._replace(idle_after=np.array([0, 1]))
    assert after.unusual_idle(1, np.array([0]), missing) == (False, True)
    assert less._replace(idle=np.array([2, 6])).unusual_idle(1, np.array([0]), missing) == (True, True)


@pytest.mark.parametrize(
    ("last", "called", "need"),
    [
        (15, 0, (40, 50)),  # b was called at 40
        (15, 45, (50, 50)),  # before the launch: it is for other work
        (15, 40, (40, 50)),
        (60, 0, (70, 80)),  # a wait
        (60, 75, (80, 80)),
        (90, 0, (100, 100)),  # the end
    ],
)
def test_what_waits_for_a_replay(last: int, called: int, need: tuple[int, int]) -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0   1 | cudaLaunchKernel | corr=1
        main     | 40  41 | cudaLaunchKernel | corr=2
        main     | 70  80 | cudaDeviceSynchronize
        main     | 99 100 | aten::x
        stream 7 | 10  20 | a | corr=1
        stream 7 | 50  60 | b | corr=2
    """)
    )
    work = trace["launches"]["device_event"]
    since, until = missing_work._next_need(trace, work, np.array([last * 1000]), np.array([called * 1000]))
    assert (since[0] // 1000, until[0] // 1000) == need


def test_kernels_without_a_duration_are_missing_where_durations_were_lost() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0  1 | cudaLaunchKernel | corr=1
        main     | 10 11 | cudaLaunchKernel | corr=2
        main     | 20 21 | cudaLaunchKernel | corr=3
        stream 7 |  5  6 | a | corr=1
        stream 7 | 15 15 | b | corr=2
    """)
    )
    rows = np.flatnonzero(trace.events.text("name").mask("cudaLaunchKernel"))
    assert missing_work._with_work(trace, rows).tolist() == [True, True, False]
    for code in ("no_duration", "negative_duration", "long_duration"):
        lost = trace.with_warnings([(code, "some", 1)])
        assert missing_work._with_work(lost, rows).tolist() == [True, False, False]


@pytest.mark.parametrize(("others", "found"), [(1, [20]), (2, [])])
def test_a_copy_without_work_counts_where_half_of_its_calls_have_some(others: int, found: list[int]) -> None:
    lines = ["main | 0 1 | cudaMemcpyAsync | corr=1", "stream 7 | 5 6 | Memcpy HtoD | corr=1"]
    lines += [f"main | {20 + 10 * n} {21 + 10 * n} | cudaMemcpyAsync | corr={50 + n}" for n in range(others)]
    lines += ["main | 80 81 | cudaMemcpy | corr=70", "main | 85 86 | hipMemcpyAsync | corr=71"]
    trace = link_launches(drawn_trace("\n".join(lines)))
    assert (trace.events["start_ns"][missing_work._copies(trace)] // 1000).tolist() == found


@pytest.mark.parametrize(("late", "pauses"), [(0, False), (1000, True)])
def test_a_device_is_idle_before_within_and_after_a_replay(late: int, pauses: bool) -> None:
    """The second replay is waited for; between its two nodes the device pauses, in us."""
    trace = link_launches(
        drawn_trace(f"""
        main     |   0   2 | cudaGraphLaunch | corr=1
        main     | 100 102 | cudaGraphLaunch | corr=2
        main     | 130 {180 + late} | cudaDeviceSynchronize
        stream 7 |  10  20 | a | corr=1
        stream 7 |  25  30 | b | corr=1
        stream 7 | 110 120 | a | corr=2
        stream 7 | {170 + late} {175 + late} | b | corr=2
    """)
    )
    launches = np.flatnonzero(trace.events.text("name").mask("cudaGraphLaunch"))
    found = missing_work._replays(trace, launches)
    assert (found.works.tolist(), found.first.tolist(), (found.busy // 1000).tolist()) == (
        [2, 2],
        [0, 2],
        [15, 15],
    )
    # From its launch, or the end of the work before, to its end; and from the next launch, or wait, on.
    assert (found.idle // 1000).tolist() == [15 + 10, 60 + late + 5]
    assert (found.idle_after // 1000).tolist() == [70, 0]
    assert found.pauses.tolist() == [False, pauses]
    assert (found.length // 1000).tolist() == [10, 5, 10, 5]
    assert missing_work.partial_replays(trace, launches, np.array([0, 1])).lost.tolist() == [1] * pauses


def test_a_replay_with_fewer_kernels_lost_them_where_the_device_was_idle() -> None:
    """The third of three replays; the fourth lacks what would have made no difference to the time."""
    lines = []
    for step in range(4):
        at = 1000 * step
        lines.append(f"main | {at} {at + 2} | cudaGraphLaunch | corr={step + 1}")
        lines.append(f"main | {at + 500} {at + 900} | cudaDeviceSynchronize")
        now = at + 10
        for node, length in (("a", 100), ("b", 50), ("c", 80)):
            lost, left_out = node == "b" and step == 2, node == "b" and step == 3
            if not (lost or left_out):
                lines.append(f"stream 7 | {now} {now + length} | {node} | corr={step + 1}")
            now += 0 if left_out else length
    trace = link_launches(drawn_trace("\n".join(lines)))
    launches = np.flatnonzero(trace.events.text("name").mask("cudaGraphLaunch"))
    found = missing_work.partial_replays(trace, launches, np.arange(4))
    assert (found.lost.tolist(), found.unsure.tolist()) == ([2], [3])
    assert missing_work.partial_replays(trace, launches, np.full(4, -1)).lost.tolist() == []
