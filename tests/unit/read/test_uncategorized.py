"""Devices and operators in files whose events have no category, or begin and end separately."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from reading import event, read_text

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.read.chrome import categories
from stepscope.trace.trace import Trace

KERNELS = ("volta_sgemm_128x64_nn", "Cijk_Ailk_Bljk_SB_MT64x64x8", "loop_add_fusion", "Memcpy HtoD")


def label(kind: str, text: str, pid: Any, tid: Any = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": text}}


# How recorders that write no category name their devices: labels, process and thread of kernels.
RECORDERS = {
    "EventList.export_chrome_trace": ([], "CUDA functions", 0),
    "rocprof": ([label("process_name", "6 GPU0", 6)], 6, 0),
    "JAX": ([label("thread_name", "Stream #14(Compute)", 2, 14)], 2, 14),
    "Kineto, cut": ([label("thread_name", "stream 7", 0, 7)], 0, 7),
    "Kineto of 2021, cut": ([], 0, "stream 7"),
}


def on_device(trace: Trace) -> list[tuple[str | None, str | None]]:
    """Name and category of the events on device tracks."""
    device = trace["tracks"].text("kind").mask("device")[trace.events["track"]]
    names, categories = trace.events.text("name"), trace.events.text("category")
    return sorted((names[row], categories[row]) for row in device.nonzero()[0].tolist())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("recorder", RECORDERS)
def test_streams_are_known_by_their_labels(recorder: str, seed: int) -> None:
    chance = random.Random(seed)
    labels, process, thread = RECORDERS[recorder]
    launches = [event("aten::mm", 10 * at, 5) for at in range(6)]
    kernels = [event(chance.choice(KERNELS), 10 * at + 4, 8, pid=process, tid=thread) for at in range(6)]
    others = [event("ProfilerStep#1", 0, 70, pid=process, tid=thread)] * (seed % 2)
    trace = read_text(json.dumps([*labels, *launches, *kernels, *others]))
    expected = [
        (each["name"], "memcpy" if each["name"].startswith("Memcpy") else "kernel") for each in kernels
    ] + [("ProfilerStep#1", "annotation") for _ in others]
    assert on_device(trace) == sorted(expected)


@pytest.mark.parametrize("tasks", [False, True])
def test_collectives_count_where_no_stream_has_their_tasks(tasks: bool) -> None:
    events = [
        *(label("process_labels", "NPU", pid) for pid in (1, 2)),
        event("hcom_allReduce__1", 60, 30, pid=2, tid=0),
        *[label("thread_name", "Stream 3", 1, 3), event("NOTIFY_WAIT", 60, 30, pid=1, tid=3)] * tasks,
    ]
    on_streams = on_device(read_text(json.dumps(events)))
    assert on_streams == [("NOTIFY_WAIT" if tasks else "hcom_allReduce__1", "kernel")]


def test_in_a_process_of_a_device_what_launches_point_to_is_its_work() -> None:
    """As torch_npu writes it: collectives have a process of their own, and a third sums up."""
    hardware, network, sums = 3216, 3232, 3264
    launches = [event("aten::mm", 0, 5), event("c10d::allreduce_", 10, 5)]
    work = [
        event("MatMulV2", 20, 30, pid=hardware, tid=2),
        event("hcom_allReduce__1", 60, 30, pid=network, tid=0),
    ]
    arrows = [
        {**end, "ph": phase, "cat": "async_npu", "id": at}
        for at, pair in enumerate(zip(launches, work, strict=True))
        for phase, end in zip("sf", pair, strict=True)
    ]
    events = [
        *(label("process_labels", "NPU", pid) for pid in (hardware, network, sums)),
        *launches,
        *work,
        *arrows,
        event("Free", 50, 10, pid=sums, tid=3),
    ]
    trace = read_text(json.dumps(events))
    assert on_device(trace) == [("MatMulV2", "kernel"), ("hcom_allReduce__1", "kernel")]
    assert trace["tracks"]["device"].tolist() == [-1, 0, 0, -1]  # one device, as it is labeled


@pytest.mark.parametrize(("text", "device"), [("NPU", 0), ("NPU 3", 3), ("gpu7", 7)])
def test_the_number_of_a_device_is_that_of_its_label(text: str, device: int) -> None:
    launch, kernel = event("aten::mm"), event("sgemm", 20, 5, pid=9)
    arrow = [{**end, "ph": phase, "id": 1} for phase, end in (("s", launch), ("f", kernel))]
    trace = read_text(json.dumps([label("process_labels", text, 9), launch, kernel, *arrow]))
    assert trace["tracks"]["device"].tolist() == [-1, device]


def test_the_number_of_a_device_of_xla_is_that_of_its_plane() -> None:
    """Its processes count from 1."""
    labels = [label("process_name", "/device:GPU:0", 1), label("thread_name", "Stream #13(Compute)", 1, 5)]
    trace = read_text(json.dumps([*labels, event("loop_add_fusion", pid=1, tid=5)]))
    assert trace["tracks"]["device"].tolist() == [0]


@pytest.mark.parametrize("text", ["NPU", "GPU 0", "CPU", "NPU 99999999999"])
def test_where_kernels_have_a_category_a_device_is_its_process(text: str) -> None:
    """Ranks that were merged into one file may each have a "GPU 0"."""
    kernel = event("sgemm", cat="kernel", pid=9)
    trace = read_text(json.dumps([label("process_labels", text, 9), kernel]))
    assert trace["tracks"]["device"].tolist() == [9]


def test_labels_are_looked_at_once_whatever_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    count, looked = 300, []
    monkeypatch.setattr(categories, "_DEVICE", SimpleNamespace(match=looked.append))
    labels = [label("process_name", f"part {tid}", 1, tid) for tid in range(count)]
    read_text(json.dumps([*labels, *(event("work", tid, 1, pid=1, tid=tid) for tid in range(count))]))
    assert len(looked) <= 2 * count


def test_threads_of_a_process_that_is_labeled_as_a_device_stay_threads() -> None:
    """Kineto has threads of process 0 that it does not know, next to the streams of device 0."""
    trace = read_text(
        json.dumps([label("process_name", "GPU 0", 0), event("threading.py(1032): run", pid=0)])
    )
    assert on_device(trace) == []


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::mm", "cpu_op"),
        ("AddmmBackward0", "cpu_op"),
        ("cudaLaunchKernel", "runtime"),
        ("hipModuleLaunchKernel", "runtime"),
        ("cuLaunchKernel", "runtime"),
        ("IteratorGetNextOp::DoCompute", "cpu_op"),  # of TensorFlow, in JSON
        ("nn.Module: Linear_0", "python"),
        ("train.py(7): main", "python"),
        ("ProfilerStep#3", "annotation"),
        ("current step", "other"),
    ],
)
def test_names_of_events_on_threads(name: str, category: str) -> None:
    assert list(read_text(json.dumps([event(name)])).events.text("category")) == [category]


def test_a_recorded_category_counts_more_than_a_name() -> None:
    trace = read_text(json.dumps([event("aten::mm", cat="python_function")]))
    assert list(trace.events.text("category")) == ["python"]


def test_categories_of_rocprofiler_are_known() -> None:
    """As `rocpd convert` writes them."""
    recorded = {
        "hip_api": "hipLaunchKernel",
        "kernel_dispatch": "Cijk_Ailk_Bljk",
        "memory_copy": "MEMORY_COPY_HOST_TO_DEVICE",
        "marker_api": "forward",
    }
    events = [event(name, 10 * at, 5, cat=cat, tid=at) for at, (cat, name) in enumerate(recorded.items())]
    trace = read_text(json.dumps(events))
    assert list(trace.events.text("category")) == ["runtime", "kernel", "memcpy", "annotation"]
    assert [name for name, _ in on_device(trace)] == [recorded["kernel_dispatch"], recorded["memory_copy"]]


def test_what_jax_and_nccl_write_of_calls_is_known_by_name_and_category() -> None:
    calls = {
        "PjitFunction(train_step)": "runtime",
        "PjRtCApiLoadedExecutable::Execute": "runtime",
        "BlockHostUntilReady": "runtime",
        "$grain/loader.py:120 __next__": "python",
        "$5 apples": "other",
    }
    trace = read_text(json.dumps([event(name, 10 * at, 5, tid=at) for at, name in enumerate(calls)]))
    assert list(trace.events.text("category")) == [*calls.values()]
    kinds = {"hip_api": "runtime", "GROUP_API": "other", "COLL_API": "other", "P2P_API": "other"}
    trace = read_text(json.dumps([event("AllReduce", 10 * at, 5, cat=kind) for at, kind in enumerate(kinds)]))
    assert list(trace.events.text("category")) == [*kinds.values()]


def test_kernels_may_begin_and_end_in_two_events() -> None:
    begins = {"ph": "B", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": 7, "ts": 1}
    trace = read_text(json.dumps([begins, {"ph": "E", "pid": 0, "tid": 7, "ts": 4}]))
    assert on_device(trace) == [("sgemm", "kernel")]


def test_what_hccl_puts_into_streams_is_communication() -> None:
    """As msprof writes it: 5.8 ms of operators, then 41 ms in which the streams exchange gradients."""
    labels = [
        label("process_labels", "NPU", 3),
        label("process_name", "Ascend Hardware", 3),
        *(label("thread_name", f"Stream {stream}", 3, stream) for stream in (2, 3, 12)),
    ]
    operators = [event(f"conv{at}-Conv2d", 290 * at, 290, pid=3, tid=2) for at in range(20)]
    tasks = [
        event(name, 5800 + 4100 * at + after, length, pid=3, tid=stream)
        for at in range(10)
        for stream in (3, 12)
        for name, after, length in (
            ("NOTIFY_WAIT", 0, 3600),
            ("MEMCPY_ASYNC", 3600, 300),
            ("REDUCE_ASYNC_V2", 3900, 200),
        )
    ]
    waits = [event("EVENT_WAIT", 5800, 41_000, pid=3, tid=2)]
    trace = annotate(read_text(json.dumps([*labels, *operators, *tasks, *waits])))
    (device,) = summarize(trace).devices
    assert device.computing_ms == pytest.approx(5.8)
    assert device.idle_ms["communication"] == pytest.approx(41.0)


def test_what_unitrace_writes_has_calls_and_devices() -> None:
    """As of pti-gpu's chromelogger.h: processes and threads of devices count down from 2**32."""
    device = {"pid": 2**32 - 1, "tid": 2**32 - 2}
    names = {7: "HOST<n1>", device["pid"]: "DEVICE<n1>0:3a:0:0 #1"}
    labels = [label("process_name", name, process) for process, name in names.items()]
    events = [
        event("zeCommandListAppendLaunchKernel", 10, 2, cat="cpu_op", pid=7),
        event("gemm_kernel[SIMD32 {8; 1; 1} {64; 1; 1}]", 20, 30, cat="gpu_op", **device),
        event("zeCommandListAppendMemoryCopy(M2D)[4096 bytes]", 60, 5, cat="gpu_op", **device),
    ]
    ends = [{"ph": "s", "pid": 7, "tid": 1, "ts": 10}, {"ph": "t", **device, "ts": 20}]
    arrow = [{**end, "cat": "Flow_H2D_5_0", "id": 5} for end in ends]
    trace = annotate(read_text(json.dumps([*labels, *events, *arrow])))
    assert list(trace.events.text("category")) == ["runtime", "kernel", "memcpy"]
    assert trace["tracks"]["device"].tolist() == [-1, 1]
    assert [(row["cpu_event"], row["device_event"]) for row in trace["launches"].rows()] == [(0, 1)]


def test_a_file_without_known_categories_says_so() -> None:
    trace = annotate(read_text(json.dumps([event("work", 0, 5), event("more work", 6, 5)])))
    (warning,) = trace["warnings"].rows()
    assert "; no event has the category or the name of an operator" in warning["message"]


@pytest.mark.parametrize("category", [{}, {"cat": "user"}])
@pytest.mark.parametrize(("name", "steps"), [("step {}", 4), ("train_step", 4), ("sweep {}", 1)])
def test_a_users_own_marks_are_steps_and_stages(name: str, steps: int, category: dict[str, str]) -> None:
    """Steps of 50 ms that load a batch for 20, in a file that has nothing else."""
    parts = [("load_batch", 0, 20_000), ("forward", 20_100, 10_000), ("backward", 30_200, 15_000)]
    events = [
        {**event(part, 50_000 * number + 10 + at, length), **category}
        for number in range(4)
        for part, at, length in [(name.format(number), -10, 49_900), *parts]
    ]
    found = summarize(annotate(read_text(json.dumps(events))))
    assert len(found.steps.numbers) == steps
    loading = [round(stage.share, 2) for stage in found.stages if stage.stage == "data_loading"]
    assert loading == [0.4] * (steps > 1)
    assert ("Reason: the file has ranges" in found.verdict.sentence) == (steps > 1)


def test_what_kineto_logged_about_lost_records_is_told() -> None:
    logged = {"WARNING": ["Record counts: Out-of-range = 0, GPU stopped early? = 1", "slow flush"]}
    trace = read_text(json.dumps({"traceEvents": [event("aten::mm", 6, 5)], **logged}))
    (warning,) = trace["warnings"].rows()
    assert (warning["code"], warning["message"]) == (
        "records_missing",
        "the recorder reported: Record counts: Out-of-range = 0, GPU stopped early? = 1",
    )


def test_a_tpu_in_jaxs_json_has_the_steps_of_its_programs() -> None:
    """Twelve programs of 10 ms, six of which wait in the queue from the beginning."""
    lines = {1: "XLA Modules", 2: "XLA Ops", 3: "Steps"}
    labels = [
        label("process_name", "/device:TPU:0", 3),
        *(label("thread_name", name, 3, thread) for thread, name in lines.items()),
    ]
    called = [50 * min(run, 5) + 10_000 * max(run - 5, 0) for run in range(12)]
    calls = [event("PjitFunction(train_step)", at, 40, pid=701, tid=5) for at in called]
    begins = [500 + 10_000 * run for run in range(12)]
    runs = [event("jit_train_step(17)", at, 9_990, pid=3, tid=1) for at in begins]
    work = [
        event(f"fusion.{part}", at + 4_900 * part, 4_900, pid=3, tid=2) for at in begins for part in (0, 1)
    ]
    trace = annotate(read_text(json.dumps([*labels, *calls, *runs, *work])))
    steps = trace["steps"]
    lengths = (steps["window_end_ns"] - steps["window_start_ns"]) / 1e6
    assert len(steps) == 12
    assert lengths[1:] == pytest.approx(10.0)
    assert (steps["device_busy_ns"] / 1e6) == pytest.approx(9.8)
