"""Tasks and dependencies built from a trace: one small trace for each kind."""

from __future__ import annotations

import random

import pytest
from drawn import graph_of, links, starts, step_us, tasks

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.graph import build_graph, scale, select
from stepscope.testing import drawn_trace

ONE_KERNEL = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  30 | aten::mm
    main     | 15  20 | cudaLaunchKernel | corr=7
    stream 7 | 30 130 | sgemm            | corr=7
"""


def test_a_cpu_thread_is_cut_where_the_innermost_event_changes() -> None:
    assert tasks(graph_of(ONE_KERNEL), "main") == [
        ("step 0", 0, 10),
        ("aten::mm", 5, 0),
        ("cudaLaunchKernel", 5, 0),
        ("aten::mm", 10, 70),
        ("step 0", 0, 0),
    ]


def test_a_launch_links_the_start_of_a_call_to_its_work() -> None:
    graph = graph_of(ONE_KERNEL)
    assert links(graph, "launch") == [("cudaLaunchKernel", "sgemm")]
    assert graph.links["lag_ns"].tolist() == [15_000]
    assert starts(graph)["sgemm"] == 30


def test_the_last_step_lasts_until_its_device_work_has_ended() -> None:
    assert step_us(graph_of(ONE_KERNEL)) == [130]


def test_work_of_one_stream_runs_in_its_order() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel | corr=7
        main     | 12  14 | cudaLaunchKernel | corr=8
        stream 7 | 20  60 | first            | corr=7
        stream 7 | 62  70 | second           | corr=8
    """)
    assert tasks(graph, "stream 7") == [("first", 40, 2), ("second", 8, 0)]
    for factor, begins in ((1, 62), (0.5, 42), (2, 102)):
        assert starts(scale(graph, select(graph, name="first"), factor))["second"] == begins


FULL_DEVICE = """
    main     |   0 700 | ProfilerStep#0
    main     |   5   6 | cudaLaunchKernel | corr=1
    main     |   {first} | cudaLaunchKernel | corr=2
    main     |   {second} | cudaLaunchKernel | corr=3
    stream 7 |  15  25 | before  | corr=1
    stream 8 |  30 430 | large   | corr=2
    stream 7 | 425 525 | waiting | corr=3
"""


def test_work_waits_for_what_was_launched_before_and_fills_the_device() -> None:
    graph = graph_of(FULL_DEVICE.format(first="20 21", second="22 23"))
    assert links(graph, "synchronization") == [("large", "waiting")]
    halved = scale(graph, select(graph, name="large"), 0.5)
    assert starts(halved)["waiting"] == 30 + 200 - 5


def test_work_does_not_wait_for_what_was_launched_later() -> None:
    graph = graph_of(FULL_DEVICE.format(first="22 23", second="20 21"))
    assert links(graph, "synchronization") == []
    assert starts(scale(graph, select(graph, name="large"), 0.5))["waiting"] == 425


@pytest.mark.parametrize("seed", range(40))
def test_steps_of_kernels_alone_follow_the_work_of_the_busiest_stream(seed: int) -> None:
    graph = graph_of(kernels_alone(random.Random(seed)))
    measured = graph.window.measured_ns / 1000
    assert step_us(graph) == measured.tolist()
    chosen = select(graph, name="sgemm")
    saved = graph.tasks["duration_ns"][chosen].sum() / 2000
    after = sum(step_us(scale(graph, chosen, 0.5)))
    assert after == pytest.approx(measured.sum() - saved, abs=0.01 * len(measured))


def kernels_alone(drawn: random.Random) -> str:
    """Five steps of the same kernels on a busy stream, and copies on others that never delay it."""
    lines, at = [], 0
    for name in ("embed", "sgemm", "relu", "sgemm", "softmax") * 5:
        length = drawn.randint(20, 40)
        lines.append(f"stream 7 | {at} {at + length} | {name}")
        lines += [f"stream {other} | {at + 2} {at + 9} | copy" for other in range(8, drawn.randint(8, 11))]
        at += length + drawn.choice([0, 3, 50])
    return "\n".join(lines)


@pytest.mark.parametrize("host", ["", "TpuExecutable | cat=runtime"], ids=["device alone", "its calls too"])
def test_steps_that_are_marked_on_a_device_are_as_long_as_its_work(host: str) -> None:
    """As of a TPU, whose programs are called long before they run: no thread is as slow as its marks."""
    lines = []
    for step in range(3):
        at = 1000 * step
        lines += [f"stream 9 | {at} {at + 1000} | step#step_num={step} | cat=annotation"]
        lines += [f"main | {20 * step} {20 * step + 5} | {host}"] if host else []
        lines += [f"stream 1 | {at} {at + 600} | fusion"]
        lines += [f"stream 1 | {at + 600} {at + 1000} | all-reduce | cat=communication"]
    graph = graph_of("\n".join(lines))
    assert step_us(graph) == [1000, 1000, 1000]
    assert step_us(scale(graph, select(graph, category="communication"), 0.5)) == [800, 800, 800]


def test_a_device_synchronization_waits_for_the_last_work_of_every_stream() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel      | corr=7
        main     | 12  14 | cudaLaunchKernel      | corr=8
        main     | 20  75 | cudaDeviceSynchronize | corr=9
        stream 7 | 20  60 | first                 | corr=7
        stream 8 | 20  70 | second                | corr=8
    """)
    assert links(graph, "synchronization") == [
        ("first", "cudaDeviceSynchronize"),
        ("second", "cudaDeviceSynchronize"),
    ]
    waiting = [task for task in tasks(graph, "main") if task[0] == "cudaDeviceSynchronize"]
    assert waiting == [("cudaDeviceSynchronize", 0, 0), ("cudaDeviceSynchronize", 5, 25)]
    assert step_us(graph) == [100]


def test_a_copy_that_ends_before_its_call_blocks_it() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel                  | corr=7
        main     | 20  80 | cudaMemcpyAsync                   | corr=8
        stream 7 | 20  60 | sgemm                             | corr=7
        stream 7 | 61  70 | Memcpy DtoH (Device -> Pageable)  | corr=8
    """)
    assert links(graph, "synchronization") == [("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync")]
    assert tasks(graph, "main")[-2] == ("cudaMemcpyAsync", 10, 20)


@pytest.mark.parametrize(
    ("call", "kind", "awaited", "rest_us"),
    [
        ("20 790", "HtoD (Pageable -> Device)", "Memcpy", 0),  # staged, and on its way
        ("20 790", "HtoD (Host -> Device)", "Memcpy", 0),
        ("20 650", "HtoD (Pageable -> Device)", "sgemm", 50),  # little is staged, after the product
        ("20 950", "HtoD (Pageable -> Device)", "Memcpy", 150),
        ("20 500", "HtoD (Pageable -> Device)", None, 480),  # before the product ends
        ("520 610", "HtoD (Pageable -> Device)", None, 90),  # no longer than a launch may take
        ("490 650", "HtoD (Pageable -> Device)", "sgemm", 50),
        ("490 660", "HtoD (Pageable -> Device)", None, 170),  # not soon after the product
        ("20 790", "HtoD (Pinned -> Device)", None, 770),
        ("20 790", "DtoD (Device -> Device)", None, 770),
    ],
)
def test_a_copy_call_waits_for_its_copy_or_for_what_was_queued_before(
    call: str, kind: str, awaited: str | None, rest_us: float
) -> None:
    graph = graph_of(f"""
        main     |   0 1000 | ProfilerStep#0
        main     |  10   12 | cudaLaunchKernel | corr=7
        main     | {call}   | cudaMemcpyAsync  | corr=8
        stream 7 |  20  600 | sgemm            | corr=7
        stream 7 | 601  800 | Memcpy {kind}    | corr=8
    """)
    copy = f"Memcpy {kind}" if awaited == "Memcpy" else awaited
    assert [source for source, _ in links(graph, "synchronization")] == [copy] * (awaited is not None)
    assert [length for name, length, _ in tasks(graph, "main") if name == "cudaMemcpyAsync"][-1] == rest_us
    assert step_us(graph) == [1000]


def test_a_call_that_waits_for_its_copy_is_shorter_after_shorter_work() -> None:
    graph = graph_of("""
        main     |   0 1000 | ProfilerStep#0
        main     |  10   12 | cudaLaunchKernel                 | corr=7
        main     |  20  790 | cudaMemcpyAsync                  | corr=8
        stream 7 |  20  600 | sgemm                            | corr=7
        stream 7 | 600  800 | Memcpy HtoD (Pageable -> Device) | corr=8
    """)
    assert step_us(scale(graph, select(graph, name="sgemm"), 0.5)) == [1000 - 580 / 2]
    assert step_us(scale(graph, select(graph, kind="memcpy"), 0.5)) == [1000 - 200 / 2]


WAITS = ["cudaEventSynchronize", "urQueueFinish", "zeEventHostSynchronize"]


@pytest.mark.parametrize("wait", [*WAITS, "wait: float(x)", "CommonPjRtBuffer::Await"])
def test_an_event_synchronization_waits_for_what_ended_last_before_it_returned(wait: str) -> None:
    graph = graph_of(f"""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel     | corr=7
        main     | 12  13 | cudaEventRecord      | corr=8
        main     | 13  15 | cudaLaunchKernel     | corr=9
        main     | 20  45 | {wait}               | corr=10 cat=runtime
        stream 7 | 20  40 | first                | corr=7
        stream 7 | 40  60 | second               | corr=9
    """)
    assert links(graph, "synchronization") == [("first", wait)]


def test_xla_launches_also_during_a_wait_what_was_called_for_before() -> None:
    graph = graph_of("""
        main     |  0 300 | ProfilerStep#0
        main     | 10  50 | PjitFunction(update)
        main     | 60 205 | wait: block_until_ready | cat=runtime
        executor | 65  70 | cuGraphLaunch           | corr=7 cat=runtime
        stream 7 | 80 200 | loop_fusion             | corr=7
    """)
    assert links(graph, "synchronization") == [("loop_fusion", "wait: block_until_ready")]
    assert step_us(scale(graph, graph.on_device, 0.5)) == [300 - 60]


@pytest.mark.parametrize(
    ("inside", "returns", "waits"),
    [
        ("6000 6100", 11000, True),  # 4.7 ms in which nothing happens, but the device ends the run before
        ("6000 10900", 11000, False),  # something happens
        ("10700 10790", 11000, False),  # it is too short
        ("10850 10950", 11000, True),  # the call goes on afterwards
        ("6000 6100", 14000, False),  # it returns much later
    ],
)
def test_a_call_of_xla_waits_until_earlier_work_has_ended(inside: str, returns: int, waits: bool) -> None:
    graph = graph_of(f"""
        main     |     0  5050 | ProfilerStep#0
        main     |    10  5000 | PjitFunction(update)
        main     |    20    24 | cuGraphLaunch | corr=7 cat=runtime
        main     |  5050 15000 | ProfilerStep#1
        main     |  5100 {returns} | PjitFunction(update)
        main     |  5110  5114 | cuGraphLaunch | corr=8 cat=runtime
        main     |  {inside} | Execute | cat=runtime
        stream 7 |    30 10800 | first         | corr=7
        stream 7 | 10800 11900 | second        | corr=8
    """)
    assert links(graph, "synchronization") == [("first", "PjitFunction(update)")] * waits
    assert sum(step_us(graph)) == 15000
    saved = 15000 - sum(step_us(scale(graph, select(graph, name="first"), 0.9)))
    assert saved == pytest.approx(1077 if waits else 0)


def test_a_stream_waits_for_an_event_of_another() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel    | corr=7
        main     | 12  13 | cudaEventRecord     | corr=8
        main     | 13  14 | cudaStreamWaitEvent | corr=9
        main     | 14  16 | cudaLaunchKernel    | corr=10
        stream 7 | 20  60 | first               | corr=7
        stream 8 | 62  70 | second              | corr=10
    """)
    assert links(graph, "synchronization") == [("first", "second")]
    assert starts(graph)["second"] == 62


def test_a_collective_waits_and_is_waited_for_as_communication() -> None:
    graph = graph_of("""
        main      |  0 200 | ProfilerStep#0
        main      | 10  12 | cudaLaunchKernel    | corr=7
        main      | 13  14 | cudaStreamWaitEvent | corr=8
        main      | 14  16 | cudaLaunchKernel    | corr=9
        main      | 20  21 | cudaStreamWaitEvent | corr=10
        main      | 22  24 | cudaLaunchKernel    | corr=11
        stream 7  | 20  60 | backward_kernel     | corr=7
        stream 20 | 62 150 | ncclAllReduce       | corr=9
        stream 7  | 152 160 | adam_kernel        | corr=11
    """)
    assert links(graph, "communication") == [
        ("backward_kernel", "ncclAllReduce"),
        ("ncclAllReduce", "adam_kernel"),
    ]
    assert step_us(graph) == [200]


def test_forward_hands_over_to_autograd_and_back() -> None:
    graph = graph_of("""
        main     |   0 200 | ProfilerStep#0
        main     |  10  30 | aten::mm      | seq=1
        autograd |  50 150 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        main     | 160 180 | aten::add_
    """)
    name = "autograd::engine::evaluate_function: MmBackward0"
    assert len(links(graph, "handover")) == 2
    assert starts(graph)[name] == 50
    # The loop hands over at 50, waits from then on, and goes on at 150.
    handed, waits, goes_on = ("", 0, 0), ("", 0, 0), ("", 0, 10)
    assert tasks(graph, "main")[1:5] == [("aten::mm", 20, 20), handed, waits, goes_on]
    assert step_us(graph) == [200]


def test_the_loop_waits_for_a_collective_of_another_thread() -> None:
    """It computes until 60, sleeps until 150, when the result is there, and is woken at 155."""
    graph = graph_of("""
        main |   0 200 | ProfilerStep#0
        main |  10  20 | c10d::allreduce_
        gloo |  20 150 | gloo:all_reduce
        main |  25  60 | aten::mm
        main | 155 180 | aten::add_
    """)
    assert ("", 0, 0) in tasks(graph, "main")  # the wait has no time of its own
    assert sum(length + gap for _, length, gap in tasks(graph, "main")) == 200 - 90
    assert step_us(graph) == [200]
    halved = scale(graph, select(graph, name="gloo:all_reduce"), 0.5)
    assert step_us(halved) == [200 - 65]  # it ends at 85, after the product


def test_an_operator_that_waits_for_a_collective_takes_no_time_itself() -> None:
    graph = graph_of("""
        main |   0 200 | ProfilerStep#0
        gloo |  20 150 | gloo:all_reduce
        main |  25  60 | aten::mm
        main |  60 150 | _c10d_functional::wait_tensor
        main | 150 200 | aten::add_
    """)
    nothing = scale(graph, select(graph, name="gloo:all_reduce"), 0)
    assert step_us(graph) == [200]
    assert step_us(nothing) == [110]


def test_a_collective_that_ends_while_the_loop_computes_is_not_waited_for() -> None:
    graph = graph_of("""
        main |   0 200 | ProfilerStep#0
        gloo |  20 100 | gloo:all_reduce
        main |  25 150 | aten::mm
        main | 150 200 | aten::add_
    """)
    assert step_us(scale(graph, select(graph, name="gloo:all_reduce"), 0)) == [200]


COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@pytest.mark.parametrize(
    ("ends", "without"),
    [
        pytest.param(500, [120], id="ended in time"),
        pytest.param(560, [120], id="held up by the system after the result was taken"),
        pytest.param(599, [120], id="held up until the step ends"),
    ],
)
def test_a_collective_ends_at_the_latest_when_its_result_is_taken(ends: int, without: list[float]) -> None:
    graph = graph_of(f"""
        main |   0 600 | ProfilerStep#0
        main |   5  20 | c10d::allreduce_
        gloo |  20 {ends} | gloo:all_reduce
        main | 500 510 | aten::as_strided
        main | 510 520 | {COPY}
        main | 520 530 | {COPY}
        main | 540 600 | aten::add_
    """)
    assert step_us(scale(graph, select(graph, name="gloo:all_reduce"), 0)) == without


def test_what_is_taken_of_an_earlier_bucket_ends_no_later_collective() -> None:
    graph = graph_of(f"""
        main    |   0 600 | ProfilerStep#0
        main    |   5  20 | c10d::allreduce_
        gloo    |  20 200 | gloo:all_reduce
        gloo 2  |  30 500 | gloo:later
        main    | 200 210 | {COPY}
        main    | 500 510 | {COPY}
        main    | 540 600 | aten::add_
    """)
    assert step_us(scale(graph, select(graph, name="gloo:later"), 0)) == [600 - 290]


def test_one_graph_launch_starts_many_kernels() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  20 | cudaGraphLaunch | corr=7
        stream 7 | 30  40 | first           | corr=7
        stream 7 | 41  60 | second          | corr=7
    """)
    assert links(graph, "launch") == [("cudaGraphLaunch", "first"), ("cudaGraphLaunch", "second")]
    assert starts(graph)["second"] == 41


def test_without_a_device_operators_are_the_work() -> None:
    graph = graph_of("""
        main |  0 100 | ProfilerStep#0
        main | 10  60 | aten::linear
        main | 15  55 | aten::addmm
    """)
    assert ("aten::addmm", 40, 0) in tasks(graph, "main")
    assert not len(graph.links)


def test_work_that_still_runs_when_the_step_begins_is_part_of_it() -> None:
    trace = annotate(
        drawn_trace("""
            main     |   0 100 | ProfilerStep#0
            main     |  10  12 | cudaLaunchKernel | corr=7
            main     | 100 200 | ProfilerStep#1
            main     | 110 112 | cudaLaunchKernel | corr=8
            stream 7 |  20 150 | first            | corr=7
            stream 7 | 150 190 | second           | corr=8
        """)
    )
    graph = build_graph(trace, steps=(1, 1)).check()
    assert tasks(graph, "stream 7") == [("first", 50, 0), ("second", 40, 0)]
    assert starts(graph)["second"] == 50
    assert step_us(build_graph(trace)) == [100, 100]


def test_consecutive_steps_make_one_graph_and_each_is_timed() -> None:
    graph = graph_of("""
        main     |   0  90 | ProfilerStep#3
        main     |  10  12 | cudaLaunchKernel | corr=7
        main     | 100 150 | ProfilerStep#4
        main     | 110 112 | cudaLaunchKernel | corr=8
        stream 7 |  20  40 | first            | corr=7
        stream 7 | 120 160 | second           | corr=8
    """)
    assert graph.window.steps == (3, 4)
    assert graph.window.measured_ns.tolist() == [100_000, 60_000]
    assert step_us(graph) == [100, 60]


def test_a_missing_step_is_refused() -> None:
    with pytest.raises(TraceError, match="rank 0 has no step 4; it has 0"):
        build_graph(annotate(drawn_trace(ONE_KERNEL)), steps=(4, 4))


def test_work_with_a_lost_launch_follows_the_cpu_task_before_it() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel | corr=7
        main     | 50  60 | aten::add
        stream 7 | 15  30 | first            | corr=7
        stream 7 | 58  70 | second
    """)
    assert links(graph, "launch") == [("cudaLaunchKernel", "first"), ("aten::add", "second")]
    assert starts(graph)["second"] == 58


def test_late_work_waited_for_work_that_just_ended_on_another_stream() -> None:
    graph = graph_of("""
        main     |  0 300 | ProfilerStep#0
        main     | 10  12 | cudaLaunchKernel | corr=7
        main     | 12  14 | cudaLaunchKernel | corr=8
        stream 7 | 20 160 | first            | corr=7
        stream 8 | 165 200 | second          | corr=8
    """)
    assert links(graph, "synchronization") == [("first", "second")]
    assert starts(graph)["second"] == 165


def test_an_independent_thread_keeps_its_start() -> None:
    graph = graph_of("""
        main   |  0 100 | ProfilerStep#0
        main   | 10  90 | aten::mm
        pinner | 30  40 | aten::pin_memory
    """)
    assert starts(graph)["aten::pin_memory"] == 30
    assert not links(graph, "handover")


def test_a_step_without_length_is_refused() -> None:
    with pytest.raises(TraceError, match="a step has no length"):
        build_graph(annotate(drawn_trace("main | 5 5 | aten::mm")))


def test_a_warm_up_step_is_left_out_by_default() -> None:
    trace = annotate(
        drawn_trace("""
            main |   0 500 | ProfilerStep#3
            main | 500 600 | ProfilerStep#4
            main | 600 700 | ProfilerStep#5
        """)
    )
    assert build_graph(trace).window.steps == (4, 5)
    assert build_graph(trace, steps=(3, 5)).window.steps == (3, 4, 5)


@pytest.mark.parametrize(("most", "steps"), [(9, (3, 4, 5)), (8, (4, 5)), (6, (4, 5)), (1, (4, 5))])
def test_of_a_large_run_the_last_steps_are_chosen_by_default(
    monkeypatch: pytest.MonkeyPatch, most: int, steps: tuple[int, ...]
) -> None:
    """Each of three steps has three events; two steps are chosen whatever their size."""
    lines = (
        f"""
        main | {at}      {at + 100} | ProfilerStep#{number}
        main | {at}      {at + 9}   | aten::mm
        main | {at + 10} {at + 19}  | aten::mm
        """
        for number, at in ((3, 0), (4, 100), (5, 200))
    )
    trace = annotate(drawn_trace("".join(lines)))
    monkeypatch.setattr("stepscope.graph.graph._MOST_EVENTS", most)
    assert build_graph(trace).window.steps == steps
    assert build_graph(trace, steps=(3, 5)).window.steps == (3, 4, 5)
