"""The facts of a report."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.correct import without_recording_cost
from stepscope.facts.summary.facts import Summary, WarmUp
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat
from stepscope.trace.trace import Trace

TWO_STEPS = """
    main     |   0 100 | ProfilerStep#1
    main     | 100 300 | ProfilerStep#2
    main     |   0  40 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     |  40  60 | ## forward ##
    main     |  41  42 | cudaLaunchKernel | corr=1
    main     |  60 100 | ## backward ##
    main     |  61  62 | cudaLaunchKernel | corr=2
    main     | 100 180 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     | 180 200 | ## forward ##
    main     | 181 182 | cudaLaunchKernel | corr=3
    main     | 200 300 | ## backward ##
    main     | 201 202 | cudaLaunchKernel | corr=4
    stream 7 |  50  60 | sgemm            | corr=1
    stream 7 |  70  90 | relu_kernel      | corr=2
    stream 7 | 190 200 | sgemm            | corr=3
    stream 7 | 210 290 | relu_kernel      | corr=4
"""


def drawn(text: str, **metadata: Any) -> Trace:
    trace = drawn_trace(text, **metadata)
    return annotate(without_recording_cost(trace) if trace.metadata.capture else trace)


def summary(text: str = TWO_STEPS, **chosen: Any) -> Summary:
    return summarize(drawn(text), **chosen)


def test_times_are_means_over_the_steps() -> None:
    steps = summary().steps
    assert steps.numbers == [1, 2]
    found = (steps.mean_ms, steps.median_ms, steps.min_ms, steps.max_ms, steps.std_ms)
    assert found == pytest.approx((0.15, 0.15, 0.1, 0.2, 0.05))


@pytest.mark.parametrize(
    ("pause", "says"), [(900, " Step 3 alone takes 71% of the recorded time."), (90, "")]
)
def test_the_verdict_names_a_step_that_takes_most_of_the_time(pause: int, says: str) -> None:
    lines, begin = [], 0
    for step in range(5):
        end = begin + 100 + pause * (step == 3)
        lines.append(f"main     | {begin} {end} | ProfilerStep#{step}")
        lines.append(f"main     | {end - 60} {end - 59} | cudaLaunchKernel | corr={step + 1}")
        lines.append(f"stream 7 | {end - 59} {end} | sgemm | corr={step + 1}")
        begin = end
    sentence = summary("\n".join(lines)).verdict.sentence
    assert sentence.endswith(says)
    assert ("alone" in sentence) == bool(says)


EVALUATED = """
    main     |   0  10 | ProfilerStep#1
    main     |  10  20 | ProfilerStep#2
    main     |  20 130 | ProfilerStep#3
    main     |   0   3 | ## forward ##
    main     |   3   9 | ## backward ##
    main     |  10  13 | ## forward ##
    main     |  13  19 | ## backward ##
    main     |  20 120 | stepscope.evaluation: validate (train.py:9)
    main     | 120 123 | ## forward ##
    main     | 123 129 | ## backward ##
"""


@pytest.mark.parametrize("device", [False, True])
def test_an_evaluation_in_one_of_the_steps_is_no_part_of_the_verdict(device: bool) -> None:
    text = EVALUATED
    for begin, end in ((0, 10), (10, 20), (20, 40), (120, 130)) if device else ():
        launch = f"{begin}.1 {begin}.2 | cudaLaunchKernel | corr={end}"
        text += f"\nmain | {launch}\nstream 7 | {begin}.3 {end} | sgemm | corr={end}"
    run: dict[str, Any] = {"elapsed_ns": 1e9, "stages_ns": {"evaluation": 5e7}, "ended": True, "steps": 90}
    capture = {"run_shares": {**run, "data_loading_ns": 0, "places": []}}
    found = summarize(annotate(drawn_trace(text, capture=capture))).verdict
    left_out = " This leaves out evaluation: 77% of the recorded steps, 5.0% of the run."
    limit = (
        "device-bound: the device computes or copies 97% of it."
        if device
        else "CPU-bound; the longest stage is backward (63%)."
    )
    assert found.sentence == f"The step is {limit}{left_out}"
    often = text.replace(
        "ProfilerStep#1", "ProfilerStep#1\n main | 9 9.5 | stepscope.evaluation: validate (train.py:9)"
    )
    assert "leaves out" not in summary(often).verdict.sentence


def test_a_stage_has_its_mean_on_either_side_and_its_share() -> None:
    found = [
        (one.stage, round(one.cpu_ms, 6), round(one.device_ms, 6), round(one.share, 2))
        for one in summary().stages
    ]
    assert found == [
        ("data_loading", 0.06, 0, 0.4),
        ("forward", 0.02, 0.01, 0.13),
        ("backward", 0.07, 0.05, 0.47),
    ]
    assert summary().data_wait_ms == pytest.approx(0.06)


ONE_STEP = """
    main | 100 300 | ProfilerStep#2
    main | 110 200 | aten::mm
"""


@pytest.mark.parametrize(
    ("text", "chosen", "unknown"),
    [
        (ONE_STEP, {}, "only one step: how much steps vary is not known"),
        (TWO_STEPS, {}, ""),
        (TWO_STEPS, {"step": 2}, "step 2 alone, which is 33% longer than the mean of 2 steps; others may"),
        ("main | 110 200 | aten::mm", {}, ""),  # no step at all, which the report says
    ],
)
def test_a_report_of_one_step_says_what_it_does_not_show(
    text: str, chosen: dict[str, int], unknown: str
) -> None:
    shown = summary(text, **chosen).steps.unknown_spread
    assert shown.startswith(unknown)
    assert bool(shown) == bool(unknown)


@pytest.mark.parametrize("queue", [0, 40, 400, 4000])
@pytest.mark.parametrize("count", [1, 3])
def test_waits_for_work_from_before_the_steps_are_no_part_of_them(queue: int, count: int) -> None:
    """The device still works on what was launched before the recording, and the CPU waits for it."""
    lines = [f"stream 7 | -10 {queue} | sgemm | corr=1"]
    begin, done = 0, max(queue, 30)
    for step in range(count):
        lines += [
            f"main | {begin} {done + 100} | ProfilerStep#{step}",
            f"main | {begin} {begin + 20} | aten::mm",
            f"main | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={step + 5}",
            f"main | {begin + 20} {done + 95} | cudaDeviceSynchronize",
            f"stream 7 | {done} {done + 90} | sgemm | corr={step + 5}",
        ]
        begin, done = done + 100, done + 130
    found = summary("\n".join(lines))
    assert [stage.share <= 1 for stage in found.stages] == [True, True], found.stages


@pytest.mark.parametrize(("later", "turns"), [(0, False), (30, False), (80, True)])
def test_devices_that_work_one_after_the_other_wait_for_each_other(later: int, turns: bool) -> None:
    """Two parts of a model in one process; the CPU waits for the second."""
    trace = drawn_trace(f"""
        main     |  0 {later + 120} | ProfilerStep#1
        main     |  1   3 | cudaLaunchKernel | corr=1
        main     |  4   6 | cudaLaunchKernel | corr=2
        main     |  6 {later + 110} | cudaDeviceSynchronize
        stream 7 |  10 100 | sgemm | corr=1
        stream 8 | {later + 10} {later + 100} | sgemm | corr=2
    """)
    tracks = trace["tracks"]
    of_second = tracks.text("name").mask("stream 8")
    trace = trace.with_table(tracks.with_columns(device=np.where(of_second, 1, tracks["device"])))
    found = summarize(annotate(trace))
    assert ("wait for each other" in found.verdict.sentence) == turns


@pytest.mark.parametrize(("ahead", "turns"), [(0, False), (17, False), (50, True)])
def test_replicas_whose_pauses_differ_take_no_turns(ahead: int, turns: bool) -> None:
    """Of each 100 us both devices work for 80, or for 50: the second so much later than the first."""
    lines, work = ["main | 0 2100 | ProfilerStep#1"], 50 if turns else 80
    for number in range(20):
        for device, later in enumerate((0, ahead)):
            begin, id = 100 * number + later, 2 * number + device + 1
            lines.append(f"main | {begin} {begin + 2} | cudaLaunchKernel | corr={id}")
            lines.append(f"stream {device} | {begin + 10} {begin + 10 + work} | mm | corr={id}")
    trace = drawn_trace("\n".join(lines))
    tracks = trace["tracks"]
    number = np.where(tracks.text("name").mask("stream 1"), 1, tracks["device"])
    found = summarize(annotate(trace.with_table(tracks.with_columns(device=number))))
    assert ("wait for each other" in found.verdict.sentence) == turns, found.verdict.sentence


@pytest.mark.parametrize(("batches", "wait"), [(1, True), (2, True), (4, True), (40, False)])
def test_stages_of_a_pipeline_wait_for_each_other(batches: int, wait: bool) -> None:
    """Two devices of one process; the second idles until the first has passed on a micro-batch, of 1 ms."""
    lines = [f"main | 0 {1000 * batches + 1200} | ProfilerStep#1"]
    for number in range(batches):
        for device in range(2):
            call, begin = 10 * (2 * number + device), 1000 * (number + device) + 20
            lines.append(f"main | {call} {call + 5} | cudaLaunchKernel | corr={call}")
            lines.append(f"stream {device} | {begin} {begin + 1000} | mm | corr={call}")
    lines += [f"main | {20 * batches} {1000 * batches + 1030} | cudaDeviceSynchronize"]
    trace = drawn_trace("\n".join(lines))
    tracks = trace["tracks"]
    number = np.where(tracks.text("name").mask("stream 1"), 1, tracks["device"])
    found = summarize(annotate(trace.with_table(tracks.with_columns(device=number))))
    assert ("wait for each other" in found.verdict.sentence) == wait, found.verdict.sentence


@pytest.mark.parametrize(
    ("delay_us", "says"), [(8, "Slow launches leave the device idle for 52%"), (150, "Launched work waits")]
)
def test_launches_of_small_kernels_are_slow_and_a_wait_for_another_stream_is_none(
    delay_us: int, says: str
) -> None:
    """Kernels of 5 us, launched on an idle device, begin a while after their launch, or twice that."""
    period = 2 * delay_us + 7
    lines = [f"main | 0 {100 * period} | ProfilerStep#1"]
    for number in range(100):
        at, begin = number * period, number * period + delay_us * (1 + number % 2)
        lines.append(f"main | {at} {at + 4} | cudaLaunchKernel | corr={at}")
        lines.append(f"stream 7 | {begin} {begin + 5} | relu | corr={at}")
    assert summary("\n".join(lines)).verdict.sentence.startswith(says)


def test_copies_beside_kernels_limit_nothing() -> None:
    found = summary("""
        main     |   0 100 | ProfilerStep#1
        main     |   0   1 | cudaLaunchKernel | corr=1
        main     |   1   2 | cudaMemcpyAsync  | corr=2
        stream 7 |   2  95 | sgemm            | corr=1
        stream 8 |   2 100 | Memcpy HtoD      | corr=2
    """)
    assert found.verdict.sentence == "The step is device-bound: the device computes or copies 98% of it."


def test_a_device_that_is_always_busy_takes_no_turns() -> None:
    """Of two others each works as the other idles."""
    trace = drawn_trace("""
        main     |   0  50 | ProfilerStep#1
        main     |   1   2 | cudaLaunchKernel | corr=1
        main     |  50 200 | ProfilerStep#2
        main     |  51  52 | cudaLaunchKernel | corr=2
        main     |  53  54 | cudaLaunchKernel | corr=3
        main     |  55  56 | cudaLaunchKernel | corr=4
        main     |  60 200 | cudaDeviceSynchronize
        stream 7 |   4 100 | sgemm | corr=1
        stream 7 | 100 200 | sgemm | corr=2
        stream 8 | 100 150 | sgemm | corr=3
        stream 9 | 150 200 | sgemm | corr=4
    """)
    tracks = trace["tracks"]
    names = tracks.text("name")
    device = np.where(names.mask("stream 8"), 1, np.where(names.mask("stream 9"), 2, tracks["device"]))
    found = summarize(annotate(trace.with_table(tracks.with_columns(device=device))), step=2)
    assert found.verdict.sentence.startswith("The step is device-bound"), found.verdict.sentence


def drawn_at_random(seed: int, rank: int) -> Trace:
    """Three steps of a rank that loads, waits and computes as no other does."""
    rng = np.random.default_rng((seed, rank))
    queue = int(rng.choice([0, 0, 60, 200]))
    lines, at, done = [f"stream 7 | -10 {queue} | sgemm | corr=99"] * bool(queue), 0, queue
    for step in range(3):
        load, work, rest = rng.integers(5, 90, 3).tolist()
        done = max(done, at + load + 20) + work
        end = max(done if rng.random() < 0.5 else 0, at + load + 25) + rest
        lines += [
            f"main | {at} {end} | ProfilerStep#{step}",
            f"main | {at} {at + load} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            f"main | {at + load} {at + load + 20} | aten::mm",
            f"main | {at + load + 5} {at + load + 10} | cudaLaunchKernel | corr={step}",
            f"main | {at + load + 21} {end - 1} | {rng.choice(['cudaDeviceSynchronize', 'aten::add'])}",
            f"stream 7 | {done - work} {done} | sgemm | corr={step}",
        ]
        at = end
    capture = {"outcome": "complete", "command": [str(rank)], "unrecorded_steps": None}
    return drawn("\n".join(lines), ranks=(rank,), world_size=3, capture=capture)


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_is_summarized_beside_others_as_alone(seed: int) -> None:
    ranks = [drawn_at_random(seed, rank) for rank in range(3)]
    joined = concat(ranks)
    for rank, alone in enumerate(ranks):
        beside, own = (msgspec.to_builtins(summarize(trace, rank)) for trace in (joined, alone))
        assert {key for key in own if beside[key] != own[key]} == set()


def test_what_another_rank_waits_for_is_no_wait_of_this_one() -> None:
    """One synchronizes with its device, which works on earlier launches; the other computes meanwhile."""
    ranks = [
        drawn(
            f"""
            stream 7 | -10  40 | sgemm | corr=1
            main     |   0 160 | ProfilerStep#0
            main     |  10  20 | cudaLaunchKernel | corr=5
            main     |  20 155 | {call}
            stream 7 |  60 150 | sgemm | corr=5
            """,
            ranks=(at,),
            world_size=2,
        )
        for at, call in enumerate(("cudaDeviceSynchronize", "aten::mm"))
    ]
    for at, alone in enumerate(ranks):
        assert summarize(concat(ranks), at).stages == summarize(alone, at).stages


def test_a_rank_has_the_capture_of_its_own_process() -> None:
    captures = [{"outcome": outcome, "unrecorded_steps": None} for outcome in ("complete", "raised")]
    ranks = [drawn(TWO_STEPS, ranks=(at,), world_size=2, capture=one) for at, one in enumerate(captures)]
    assert [summarize(concat(ranks), at).capture["outcome"] for at in (0, 1)] == ["complete", "raised"]


def test_one_step_can_be_chosen() -> None:
    chosen = summary(step=2)
    assert chosen.steps.numbers == [2]
    assert [one.cpu_ms for one in chosen.stages] == pytest.approx([0.08, 0.02, 0.1])
    assert [(one.name, round(one.total_ms, 6)) for one in chosen.kernels] == [
        ("relu_kernel", 0.08),
        ("sgemm", 0.01),
    ]


def test_a_devices_times_fill_its_window() -> None:
    (device,) = summary().devices
    assert device.window_ms == pytest.approx(0.15)
    assert device.computing_ms + sum(device.idle_ms.values()) == pytest.approx(device.window_ms)
    assert device.computing_ms == pytest.approx(0.06)
    assert device.idle_ms["data"] == pytest.approx(0.06)


def test_time_in_which_a_device_only_copies_is_told_apart_from_computing() -> None:
    text = """
        main     |  0 100 | ProfilerStep#1
        main     |  1   2 | cudaMemcpyAsync  | corr=1
        main     |  2   3 | cudaLaunchKernel | corr=2
        main     |  3   4 | cudaMemsetAsync  | corr=3
        stream 7 | 10  60 | Memcpy HtoD      | corr=1
        stream 8 | 40  80 | sgemm            | corr=2
        stream 7 | 80 100 | Memset (Device)  | corr=3
    """
    (device,) = summary(text).devices
    assert device.copying_ms == pytest.approx(0.03 + 0.02)
    assert device.computing_ms == pytest.approx(0.09)
    assert sum(device.parts_ms.values()) == pytest.approx(device.window_ms)
    assert device.parts_ms["computing"] == pytest.approx(0.04)
    assert device.parts_ms["copying"] == pytest.approx(0.05)


def test_hardly_any_copying_is_no_part_of_its_own() -> None:
    text = TWO_STEPS.replace("stream 7 |  50  60 | sgemm      ", "stream 7 |  50  51 | Memcpy HtoD")
    (device,) = summary(text).devices
    assert device.copying_ms > 0
    assert "copying" not in device.parts_ms
    assert sum(device.parts_ms.values()) == pytest.approx(device.window_ms)


def test_kernels_are_counted_by_name_with_the_stage_that_they_mostly_serve() -> None:
    found = [(k.name, k.kind, k.stage, k.count, round(k.total_ms, 6)) for k in summary().kernels]
    assert found == [
        ("relu_kernel", "elementwise", "backward", 1, 0.05),
        ("sgemm", "gemm", "forward", 1, 0.01),
    ]
    assert summary().kinds == pytest.approx({"elementwise": 0.05, "gemm": 0.01})


def test_operators_of_one_name_are_of_the_kind_that_most_of_their_time_is() -> None:
    """An addition in forward is elementwise, those of the update are the optimizer's."""
    found = summary("""
        main | 0 100 | ProfilerStep#1
        main | 10 20 | ## forward ##
        main | 11 15 | aten::add
        main | 30 90 | Optimizer.step#SGD.step
        main | 40 70 | aten::add
    """)
    told = [(one.name, one.kind, one.stage, one.count) for one in found.kernels]
    assert ("aten::add", "optimizer", "optimizer", 2) in told


def test_without_a_device_operators_take_the_kernels_place() -> None:
    found = summary("""
        main | 0 100 | ProfilerStep#1
        main | 10 60 | aten::linear
        main | 20 50 | aten::addmm
    """)
    assert found.devices == []
    assert found.kernels_are == "operators"
    assert [(one.name, round(one.total_ms, 6)) for one in found.kernels] == [
        ("aten::addmm", 0.03),
        ("aten::linear", 0.02),
    ]


def test_communication_that_computing_hides_is_told_apart() -> None:
    (device,) = summary("""
        main      |  0 100 | ProfilerStep#1
        main      |  0   1 | cudaLaunchKernel        | corr=1
        main      |  1   2 | cudaLaunchKernel        | corr=2
        stream 7  |  1  50 | a                       | corr=1
        stream 20 | 40 100 | ncclDevKernel_AllReduce | corr=2
    """).devices
    assert device.communication_ms == pytest.approx(0.06)
    assert device.overlapped_ms == pytest.approx(0.01)
    assert device.idle_ms["communication"] == pytest.approx(0.05)


def test_everything_can_be_written_as_json() -> None:
    data = json.loads(msgspec.json.encode(summary()))
    assert data["verdict"]["bound_by"] == "data"
    assert data["stages"][0]["stage"] == "data_loading"


def test_each_rank_has_facts_of_its_own() -> None:
    half = TWO_STEPS.replace("50  60 | sgemm", "50  55 | sgemm")
    both = concat([drawn(TWO_STEPS, ranks=(0,)), drawn(half, ranks=(1,))])
    computing = [summarize(both, rank).devices[0].computing_ms for rank in (0, 1)]
    assert computing == pytest.approx([0.06, 0.0575])


def test_a_rank_or_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(TraceError, match="rank 0 has no step 7; it has 1, 2"):
        summary(step=7)
    with pytest.raises(TraceError, match="there is no rank 3; the trace has 0"):
        summary(rank=3)


def test_a_trace_without_events_has_no_facts_but_a_reason() -> None:
    nothing = drawn("", source="run.stepscope", capture={"message": "it never imported torch"})
    with pytest.raises(TraceError, match=r"run\.stepscope: .* it never imported torch"):
        summarize(nothing)


def test_what_a_cpu_waits_for_is_neither_computing_nor_python() -> None:
    """60 of 100 us the loop waits for other ranks, 10 it runs Python, and it computes for 30."""
    found = summary("""
        main   |  0 100 | ProfilerStep#1
        main   |  0  20 | aten::mm | seq=1 fwd=0
        main   | 30  40 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        others | 35 100 | gloo:all_reduce | cat=communication
    """)
    assert (found.verdict.bound_by, found.verdict.share) == ("communication", pytest.approx(0.6))


def test_what_the_host_exchanges_is_no_communication_of_the_device() -> None:
    """NCCL runs for 30 of 100 us, 10 of them beside a kernel; then the GPU waits 20 us for Gloo."""
    found = summary("""
        main     |  0 100 | ProfilerStep#1
        main     |  1   2 | cudaLaunchKernel | corr=1
        main     |  3   4 | cudaLaunchKernel | corr=2
        gloo     | 60  80 | gloo:all_reduce | cat=communication
        main     | 81  82 | cudaLaunchKernel | corr=3
        stream 7 |  5  30 | gemm | corr=1
        stream 9 | 20  50 | ncclDevKernel_AllReduce | corr=2 cat=communication
        stream 7 | 85  99 | adam | corr=3
    """)
    [device] = found.devices
    assert device.idle_ms["communication"] == pytest.approx(0.040)
    assert (device.communication_ms, device.overlapped_ms) == (pytest.approx(0.030), pytest.approx(0.010))
    assert found.steps.device_busy_ms == pytest.approx(0.059)


def test_python_between_operators_holds_a_step_up() -> None:
    found = summary("""
        main | 0 100 | ProfilerStep#1
        main | 60 70 | aten::mm | seq=1 fwd=0
        main | 70 95 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main | 95 100 | Optimizer.step#SGD.step
    """)
    assert (found.verdict.bound_by, found.verdict.share) == ("host", pytest.approx(0.65))


WARMING = """
    main |    0 1000 | ProfilerStep#0
    main |   10  900 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main | 1000 1100 | ProfilerStep#1
    main | 1001 1099 | aten::mm
    main | 1100 1200 | ProfilerStep#2
    main | 1101 1199 | aten::mm
"""


def test_a_first_step_that_warms_up_is_no_part_of_the_means() -> None:
    found = summary(WARMING)
    assert (found.steps.numbers, found.steps.warm_up) == ([1, 2], WarmUp(0, pytest.approx(1)))
    assert (found.steps.mean_ms, found.steps.max_ms) == pytest.approx((0.1, 0.1))
    assert (found.verdict.bound_by, found.data_wait_ms) == ("cpu", 0)
    assert [(one.name, one.count) for one in found.kernels] == [("aten::mm", 1)]


def test_a_step_that_warms_up_can_be_looked_at_alone() -> None:
    found = summary(WARMING, step=0)
    assert (found.steps.numbers, found.steps.warm_up) == ([0], None)
    assert found.verdict.bound_by == "data"


def test_of_two_steps_nobody_knows_which_is_usual() -> None:
    two = WARMING.partition("    main | 1100")[0]
    assert summary(two).steps.numbers == [0, 1]


@pytest.mark.parametrize(
    ("later", "kept"), [((30, 14, 10, 10, 10), [3, 4, 5]), ((14, 30, 10, 10, 10), [2, 3, 4, 5])]
)
def test_shorter_and_shorter_steps_after_a_warm_up_are_none_of_the_means(later, kept) -> None:
    ends = [100, *(100 + sum(later[: place + 1]) for place in range(5))]
    steps = zip([0, *ends], ends, strict=False)
    found = summary("\n".join(f"main | {a} {b} | ProfilerStep#{n}" for n, (a, b) in enumerate(steps)))
    assert (found.steps.numbers, found.steps.warm_up_steps) == (kept, 6 - len(kept))


def test_a_later_step_that_takes_long_counts() -> None:
    late = "main | 0 100 | ProfilerStep#0\nmain | 100 200 | ProfilerStep#1\n"
    assert summary(late + "main | 200 900 | ProfilerStep#2").steps.numbers == [0, 1, 2]
