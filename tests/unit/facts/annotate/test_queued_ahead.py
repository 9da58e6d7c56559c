"""Steps whose work waits in a device's queue: windows follow the order in which the device works."""

from __future__ import annotations

import random
from itertools import count, pairwise

import pytest
from facts import us, warning_codes

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

Windows = list[tuple[float, float]]


def windows(trace: Trace) -> Windows:
    return us(trace, "steps", "window_start_ns", "window_end_ns")


# -- PyTorch: work of earlier steps at the front of the queue


def queued(front: int, ids: int, front_name: str = "sgemm", marked: bool = True) -> Trace:
    """Three steps of two kernels of 1 ms, behind a queue of `front` kernels whose launches lack."""
    free, lines = 100, []
    for number in range(front):
        lines.append(f"stream 7 | {free} {free + 1000} | {front_name} | corr={ids + number}")
        free += 1000
    for step in range(3):
        begin = 200 * step
        lines.append(f"main | {begin} {begin + 200} | ProfilerStep#{step}")
        for number in (2 * step, 2 * step + 1):
            at = begin + 20 + 50 * (number % 2)
            lines.append(f"main | {at} {at + 10} | cudaLaunchKernel | corr={100 + number}")
            lines.append(f"stream 7 | {free} {free + 1000} | sgemm | corr={100 + number}")
            free += 1000
    return annotate(drawn_trace("\n".join(line for line in lines if "ProfilerStep" not in line or marked)))


def test_work_of_earlier_launches_is_part_of_a_step_that_is_the_whole_trace() -> None:
    trace = queued(front=5, ids=1, marked=False)
    assert set(trace["steps"].text("evidence")) == {"whole_trace"}
    assert us(trace, "steps", "device_busy_ns") == [(11000,)]
    kernels = trace.events.text("category").mask("kernel")
    assert (trace.events["step"][kernels] == trace["steps"]["step"][0]).all()


@pytest.mark.parametrize("ids", [1, 900], ids=["ids before", "ids after"])
def test_the_first_window_begins_when_the_work_of_earlier_steps_ends(ids: int) -> None:
    trace = queued(front=5, ids=ids)
    assert windows(trace) == [(5100, 7100), (7100, 9100), (9100, 11100)]
    assert us(trace, "steps", "device_busy_ns") == [(2000,)] * 3
    assert warning_codes(trace) == {"launched_before_recording": 5}


def test_work_that_never_has_a_launch_is_no_queue() -> None:
    """Its launches are not recorded: it belongs to the step in which it runs."""
    trace = annotate(
        drawn_trace("""
        main     |   0 100 | ProfilerStep#1
        main     | 100 200 | ProfilerStep#2
        main     |  20  22 | cudaLaunchKernel | corr=1
        main     | 120 122 | cudaLaunchKernel | corr=2
        stream 7 |  10  40 | graph_kernel     | corr=901
        stream 7 |  40  60 | sgemm            | corr=1
        stream 7 | 110 140 | graph_kernel     | corr=902
        stream 7 | 140 160 | sgemm            | corr=2
        """)
    )
    assert windows(trace) == [(0, 100), (100, 200)]
    assert us(trace, "steps", "device_busy_ns") == [(50,), (50,)]
    assert warning_codes(trace) == {"unlinked_device_work": 2}


# -- side streams: copies ahead and communication beside the main stream

OF_STREAM = {7: "sgemm", 8: "Memcpy HtoD", 9: "ncclDevKernel_AllReduce", 10: "Memcpy DtoH"}


def side_streams(seed: int) -> tuple[list[str], Windows]:
    """A loop that is one or two steps ahead of its device; the windows of the steps that are recorded.

    Each step computes on stream 7. It may copy inputs ahead on stream 8, sum gradients on stream 9,
    and read back on stream 10. Of one or two steps before the recorded ones the file has the work, and
    perhaps its calls.
    """
    chance = random.Random(seed)
    before, steps, ahead = chance.randint(1, 2), chance.randint(2, 5), chance.randint(1, 2)
    length, (copies, sums, reads) = chance.randint(500, 5000), chance.choices([True, False], k=3)
    linked, lines, done = chance.random() < 0.5, ["main | 0 1 | aten::first"], []
    free, ids = dict.fromkeys(OF_STREAM, 0), count(1)

    def run(stream: int, called: int, after: int, us: int) -> int:
        id, begin = next(ids), max(after, called + 5, free[stream])
        free[stream] = begin + us
        if linked or called >= 2 * length:
            lines.append(f"main | {called} {called + 2} | cudaLaunchKernel | corr={id}")
        lines.append(f"stream {stream} | {begin} {begin + us} | {OF_STREAM[stream]} | corr={id}")
        return begin + us

    for step in range(-before, steps):
        begun = (2 + step) * length
        if step >= 0:
            lines.append(f"main | {begun} {begun + length} | ProfilerStep#{step}")
        if copies:
            run(8, begun + 3, 0, length // 20)
        half = run(7, begun + 20, begun + ahead * length, length // 2)
        summed = run(9, begun + 40, half - length // 4, length // 3) if sums else half
        last = run(7, begun + 60, max(half, summed), length // 20)
        done.append(run(10, begun + 80, last, length // 25) if reads else last)
    return lines, list(pairwise(done[before - 1 :]))


@pytest.mark.parametrize("seed", range(60))
def test_small_work_on_a_side_stream_opens_no_window(seed: int) -> None:
    lines, expected = side_streams(seed)
    assert windows(annotate(drawn_trace("\n".join(lines)))) == expected


@pytest.mark.parametrize("seed", range(12))
def test_windows_of_side_streams_have_no_cliffs(seed: int) -> None:
    """Moving one piece of work by a microsecond moves no end of a window by more."""
    chance, (lines, expected) = random.Random(seed), side_streams(seed)
    for place in chance.sample([n for n, line in enumerate(lines) if line.startswith("stream")], 5):
        stream, span, *rest = lines[place].split(" | ")
        begin, end = map(int, span.split())
        moved = " | ".join([stream, f"{begin + 1} {end + 1}", *rest])
        found = windows(annotate(drawn_trace("\n".join([*lines[:place], moved, *lines[place + 1 :]]))))
        assert (
            max(abs(a - b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True))
            <= 1
        )


# -- JAX: programs that were called ahead


def jax_loop(
    calls: list[int], lengths: list[int], front: int = 0, linked: bool = True, parts: int = 3
) -> tuple[str, Windows]:
    """Calls at some times of programs of some lengths, us; the windows of their steps.

    Each program has `parts` operations. The first `front` programs were called before. Where nothing
    links work to calls, operations name their program.
    """
    free, lines, ends = 0, [], []
    for run, (called, length) in enumerate(zip([-1] * front + calls, lengths, strict=True)):
        begin = max(free, called + 30)
        if called >= 0:
            execute = f"main | {called + 2} {called + 9} | TfrtExecutable::Execute | cat=runtime"
            lines.append(f"main | {called} {called + 10} | PjitFunction(train_step) | cat=runtime")
            lines.append(f"{execute} corr={run}" if linked else execute)
        for part in range(parts):
            a, b = begin + part * length // parts, begin + (part + 1) * length // parts
            ids = f"corr={run}" if linked else "hlo__module=jit_train_step"
            lines.append(f"stream 1 | {a} {b} | fusion.{part} | {ids}")
        free = begin + length
        ends.append(free)
    first = max(calls[0], ends[front - 1]) if front else calls[0]
    bounds = [first, *ends[front:]]
    return "\n".join(lines), list(pairwise(bounds))


def called_ahead(depth: int, steps: int, length: int) -> list[int]:
    """Calls `depth` at once, then one for each program that ends."""
    return [20 * min(call, depth) + length * max(call - depth, 0) for call in range(steps)]


def test_programs_that_wait_in_the_queue_are_steps() -> None:
    text, expected = jax_loop(called_ahead(6, 12, 10_000), [10_000] * 12)
    trace = annotate(drawn_trace(text))
    assert windows(trace) == expected
    assert "cut_off_step" not in warning_codes(trace)
    assert summarize(trace).steps.mean_ms == pytest.approx(10.0, rel=0.01)


def test_runs_of_a_program_without_ids_belong_to_its_calls_in_their_order() -> None:
    text, _ = jax_loop([0, 1000, 2000, 3000, 4000, 5000], [360] * 6, linked=False)
    trace = annotate(drawn_trace(text))
    assert windows(trace) == [(1000 * step, 1000 * step + 1000) for step in range(5)]
    assert us(trace, "steps", "device_busy_ns") == [(360,)] * 5
    assert warning_codes(trace)["linked_by_order"] == 18


def test_calls_that_only_fill_a_queue_are_steps_where_a_file_has_no_other_record_of_the_cpu() -> None:
    """As JAX's profile as JSON, whose calls are ranges."""
    text, expected = jax_loop(called_ahead(4, 12, 10_000), [10_000] * 14, front=2, linked=False, parts=12)
    calls = [line for line in text.splitlines() if "Execute" not in line]
    trace = annotate(drawn_trace("\n".join(calls).replace("cat=runtime", "cat=annotation")))
    assert windows(trace) == expected
    assert "cut_off_step" not in warning_codes(trace)


def test_a_device_with_steps_of_its_own_is_named() -> None:
    """TensorFlow on two devices: the marks of one are taken."""
    trace = drawn_trace("""
        stream 1 |   0 100 | step#step_num=0 | cat=annotation
        stream 1 |  10  90 | conv
        stream 2 | 500 600 | step#step_num=0 | cat=annotation
        stream 2 | 510 590 | conv
    """)
    tracks = trace["tracks"]
    trace = annotate(trace.with_table(tracks.with_columns(device=tracks["stream"] + 3)))
    (warning,) = (row for row in trace["warnings"].rows() if row["code"] == "device_outside_steps")
    assert warning["message"] == "0.08 ms of 0.16 ms of device work is in no step: the work of device 5"


# -- a family of queues with known truth


def check_queue(seed: int) -> None:
    """A loop of JAX that is called up to 40 programs ahead, and may begin behind older programs."""
    chance = random.Random(seed)
    depth, steps, length = chance.randint(1, 40), chance.randint(4, 60), chance.randint(500, 20_000)
    front = chance.choice([0, 0, chance.randint(1, 12)])
    lengths = [round(length * chance.uniform(0.98, 1.02)) for _ in range(front + steps)]
    linked, parts = chance.random() < 0.5, chance.randint(1, 6)
    text, expected = jax_loop(called_ahead(depth, steps, length), lengths, front, linked, parts)
    trace = annotate(drawn_trace(text))
    found = windows(trace)
    assert len(found) >= steps - 1
    for (a, b), (c, d) in zip(found, expected, strict=False):
        assert abs((b - a) - (d - c)) <= 0.02 * length + 31
    verdict = summarize(trace).verdict
    assert verdict.bound_by == "device" or depth == 1


def check_torch_queue(seed: int) -> None:
    """A loop of PyTorch that begins behind older work, which may be recorded, with ids of any kind."""
    chance = random.Random(seed)
    steps, kernels = chance.randint(2, 6), chance.randint(2, 8)
    length = chance.randint(300, 3000)
    front, ids, recorded = chance.randint(0, 60), chance.choice([0, 9000]), chance.random() < 0.7
    lines, free, clock, ends = [], 0, chance.randint(10, 200), []
    free = 5
    for number in range(front):
        if recorded:
            lines.append(f"stream 7 | {free} {free + length} | sgemm | corr={ids + number}")
        free += length
    front_end, first = free, clock
    for step in range(steps):
        begin = clock
        for number in range(kernels):
            id = 1000 + step * kernels + number
            clock += chance.randint(5, 40)
            lines.append(f"main | {clock} {clock + 5} | cudaLaunchKernel | corr={id}")
            start = max(free, clock + 8)
            free = start + length
            lines.append(f"stream 7 | {start} {free} | sgemm | corr={id}")
        clock += chance.randint(5, 30)
        lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
        ends.append(max(clock, free))
    found = windows(annotate(drawn_trace("\n".join(lines))))
    bounds = [max(first, front_end if front else 0), *ends]
    for (a, b), (c, d) in zip(found, pairwise(bounds), strict=True):
        # A wait of less than 1 ms may be for a queue that is not recorded, or for the device.
        assert abs((b - a) - (d - c)) <= 0.02 * (d - c) + (0 if recorded else 1000)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("check", [check_queue, check_torch_queue])
def test_generated_queues(seed: int, check: object) -> None:
    check(seed)  # type: ignore[operator]


@pytest.mark.full(every=3)
@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("check", [check_queue, check_torch_queue])
def test_all_generated_queues(check: object, block: int) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        check(seed)  # type: ignore[operator]


# -- XLA on GPUs: other threads launch, as late as the device needs it


def gpu_loop(depth: int, steps: int, length: int, front: int = 0, devices: int = 1) -> tuple[str, Windows]:
    """Programs that are called `depth` ahead, and launched by a thread just before they run."""
    text, expected = jax_loop(
        called_ahead(depth, steps, length), [length] * (front + steps), front, linked=False
    )
    lines, number = [], 0
    for line in text.splitlines():
        if not line.startswith("stream"):
            lines.append(line)
            continue
        for device in range(devices):
            number += 1
            _, span, name, _ = line.split(" | ")
            begin = int(span.split()[0])
            launch = f"worker {device} | {max(begin - 20, 0)} {max(begin - 10, 1)} | cuLaunchKernel"
            lines.append(f"{launch} | corr={number} hlo__module=jit_train_step")
            lines.append(f"stream {device + 1} | {span} | {name} | corr={number}")
    return "\n".join(lines), expected


@pytest.mark.parametrize("depth", [1, 7, 32])
@pytest.mark.parametrize("front", [0, 3])
def test_late_launches_of_other_threads_belong_to_the_call_of_their_program(depth: int, front: int) -> None:
    text, expected = gpu_loop(depth, 40, 5_000, front)
    found = windows(annotate(drawn_trace(text)))
    assert len(found) >= 39
    for (a, b), (c, d) in zip(found[1:], expected[1:], strict=False):
        assert abs((b - a) - (d - c)) <= 100


@pytest.mark.parametrize("depth", [1, 32])
def test_work_that_names_no_program_is_of_the_one_that_the_loop_calls(depth: int) -> None:
    text, expected = gpu_loop(depth, 40, 5_000)
    found = windows(annotate(drawn_trace(text.replace(" hlo__module=jit_train_step", ""))))
    for (a, b), (c, d) in zip(found[1:], expected[1:], strict=False):
        assert abs((b - a) - (d - c)) <= 100


def test_runs_are_those_of_the_devices_line_of_programs() -> None:
    text, expected = jax_loop(called_ahead(5, 12, 10_000), [10_000] * 14, front=2, linked=False)
    work = [line.replace("hlo__module=jit_train_step", "") for line in text.splitlines()]
    ends = [expected[0][0] - 10_000, *(a for a, _ in expected)]
    runs = [f"stream 9 | {a} {a + 10_000} | jit_train_step(7) | cat=annotation" for a in ends]
    trace = annotate(drawn_trace("\n".join([*(line.rstrip(" |") for line in work), *runs])))
    assert windows(trace)[1:] == expected[1 : len(trace["steps"])]
    assert len(trace["steps"]) >= 11
