"""What becomes of each part of an XLA profile."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest
from xspaces import ORIGIN_NS, Operation, Slice, message, part, read_bytes, read_space, varint, xspace

from stepscope.errors import IngestError
from stepscope.read import read
from stepscope.read.xplane.xplane import read_xplane
from stepscope.trace.trace import Trace

SCOPE = "jit(step)/jvp(MLP)/Dense_0/dot_general"


def rows(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in columns) for row in trace.events.rows()]


def told(trace: Trace) -> dict[str, int]:
    return {row["code"]: row["count"] for row in trace["warnings"].rows()}


def test_times_are_rounded_to_the_nanosecond() -> None:
    trace = read_space({"/host:CPU": {"python": [Slice("a", 1, 2), Slice("b", 5.0006, 0.0014)]}})
    assert rows(trace, "name", "start_ns", "duration_ns") == [("a", 0, 2000), ("b", 4001, 1)]
    assert trace.metadata.origin_ns == ORIGIN_NS + 1000


def test_operations_of_tensorflow_have_their_names_as_scopes() -> None:
    trace = read_space(
        {
            "/host:CPU": {
                "python": [Slice("EagerLocalExecute: __inference_step", 0, 50)],
                "tf_Compute": [
                    Slice("ExecutorState::Process", 10, 30),
                    Slice("gradient_tape/net/dense/MatMul:_MklMatMul", 12, 20),
                ],
                "tf_data": [Slice("IteratorGetNextOp::DoCompute", 1, 5)],
            }
        }
    )
    assert trace.metadata.framework == "tensorflow"
    assert [(row["name"], row["category"], row["scope"]) for row in trace.events.rows()] == [
        ("EagerLocalExecute: __inference_step", "annotation", None),
        ("IteratorGetNextOp::DoCompute", "cpu_op", None),
        ("ExecutorState::Process", "runtime", None),
        ("_MklMatMul", "cpu_op", "gradient_tape/net/dense/MatMul"),
    ]


@pytest.mark.parametrize("recorded", ["net/dense/MatMul:MatMul", "net/dense/MatMul:"])
def test_the_scope_of_a_kernel_leaves_out_the_type_of_the_operation(recorded: str) -> None:
    trace = read_space({"/device:GPU:0": {"Stream #7": [Slice("sgemm", 0, 5, tf_op=recorded)]}})
    assert rows(trace, "name", "scope") == [("sgemm", "net/dense/MatMul")]


def test_threads_of_one_number_are_one_track() -> None:
    trace = read_space(
        {
            "/host:CPU": {"python": [Slice("PjitFunction(step)", 0, 50)]},
            "/host:CUPTI": {"Host Threads/1": [Slice("cuLaunchKernel", 10, 5, correlation_id=7)]},
            "/device:GPU:0": {"Stream #13(Compute)": [Slice("sgemm", 40, 5, correlation_id=7)]},
        }
    )
    assert rows(trace, "name", "category", "track", "parent", "correlation") == [
        ("PjitFunction(step)", "runtime", 0, None, None),
        ("cuLaunchKernel", "runtime", 0, 0, 7),
        ("sgemm", "kernel", 1, None, 7),
    ]
    tracks = [(row["kind"], row["name"], row["device"], row["stream"]) for row in trace["tracks"].rows()]
    assert tracks == [("cpu", "python", None, None), ("device", "Stream #13(Compute)", 0, 13)]
    assert trace.metadata.framework == "jax"


@pytest.mark.parametrize(
    ("name", "stats", "expected"),
    [
        ("dot.3", {"hlo_op": "dot.3"}, ("dot.3", "cpu_op")),
        ("$train.py:12 step", {}, ("train.py(12): step", "python")),
        ("$builtins len", {}, ("builtins len", "python")),
        ("hipLaunchKernel", {"hlo_op": "a", "correlation_id": 1}, ("hipLaunchKernel", "runtime")),
        ("PjRtCpuClient::Compile", {}, ("PjRtCpuClient::Compile", "runtime")),
        ("hipLaunchKernel", {}, ("hipLaunchKernel", "runtime")),
        ("load_batch", {}, ("load_batch", "annotation")),
        ("train", {"step_num": 3, "_r": 1}, ("train#step_num=3", "annotation")),
    ],
)
def test_what_runs_on_a_thread(name: str, stats: dict[str, Any], expected: tuple[str, str]) -> None:
    trace = read_space({"/host:CPU": {"python": [Slice(name, 0, 9, **stats)]}})
    assert rows(trace, "name", "category") == [expected]


def test_what_runs_on_a_device() -> None:
    trace = read_space(
        {
            "/device:GPU:1": {
                "Stream #1": [
                    Slice("fusion", 0, 5),
                    Slice("MemcpyH2D", 5, 5, memcpy_details="kind_src:host size:1024 dest:0"),
                    Slice("Memset", 10, 5),
                ],
                "XLA Modules": [Slice("jit_step", 0, 15)],
            }
        }
    )
    assert rows(trace, "name", "category", "bytes") == [
        ("jit_step", "annotation", None),
        ("fusion", "kernel", None),
        ("MemcpyH2D", "memcpy", 1024),
        ("Memset", "memset", None),
    ]
    assert list(trace["tracks"]["device"]) == [1, 1]


def test_the_operations_of_a_tpu_are_tied_to_the_call_that_ran_their_program() -> None:
    trace = read_space(
        {
            "/device:TPU:0": {
                "Steps": [Slice("4", 20, 30)],
                "XLA Modules": [Slice("jit_step(1)", 20, 30, run_id=88)],
                "XLA Ops": [Slice("while.3", 20, 25), Slice("fusion.1", 21, 9)],
            },
            "/host:CPU": {"main": [Slice("TpuExecutable", 3, 5, run_id=88), Slice("x", 4, 1)]},
        }
    )
    assert rows(trace, "name", "category", "correlation") == [
        ("TpuExecutable", "runtime", 88),
        ("x", "annotation", None),
        ("step#step_num=4", "annotation", None),
        ("jit_step(1)", "annotation", None),
        ("while.3", "annotation", 88),
        ("fusion.1", "kernel", 88),
    ]


def test_scopes_are_told_by_the_event_or_else_by_its_program() -> None:
    kernels = [
        Slice("a", 0, 1, tf_op=SCOPE + ":"),
        Slice("b", 1, 1, hlo_op="dot.1", hlo_module="jit_step", program_id=1),
        Slice("c", 2, 1, hlo_op="dot.1", hlo_module="jit_step"),
        Slice("d", 3, 1, hlo_op="dot.9", hlo_module="jit_step"),
        Slice("e", 4, 1, tf_op="XlaModule:"),
    ]
    programs = {"jit_step": {"dot.1": Operation("dot", SCOPE, "train.py", 12)}}
    trace = read_space({"/device:GPU:0": {"Stream #1": kernels}}, programs)
    assert rows(trace, "name", "scope") == [
        ("a", SCOPE),
        ("b", SCOPE),
        ("c", SCOPE),
        ("d", None),
        ("e", None),
    ]
    assert trace.event_arguments(2)["source"] == "train.py:12"
    assert "source" not in trace.event_arguments(3)


def test_kernels_of_a_cuda_graph_have_the_scopes_of_what_they_execute() -> None:
    names = ["loop_add_fusion_2", "Memset 0", "sm90_gemm", "loop_add_fusion_2", "cudnn::conv"]
    kernels = [
        Slice(
            name,
            at,
            1,
            hlo_op="command_buffer",
            hlo_module="jit_step",
            program_id=1,
            correlation_id=5,
            cuda_graph_node_id=7 + at,
        )
        for at, name in enumerate(names)
    ]
    operations = {  # as the program lists them; they execute in their turns
        "cublas.7": Operation("custom-call", "jit(step)/b/dot", turn=2),
        "conv.9": Operation("custom-call", "jit(step)/d/conv", turn=4),
        "loop_add_fusion.2": Operation("fusion", "jit(step)/a/add", turn=1),
        "loop_add_fusion.3": Operation("fusion", "jit(step)/c/add", turn=3),
    }
    trace = read_space({"/device:GPU:0": {"Stream #1": kernels}}, {"jit_step": operations})
    assert rows(trace, "name", "scope") == list(
        zip(
            names, (f"jit(step)/{one}" for one in ("a/add", "b/dot", "b/dot", "c/add", "d/conv")), strict=True
        )
    )


def test_every_stat_is_an_argument() -> None:
    stats = {"whole": -5, "real": 0.5, "text": "é\n", "raw": b"\x00", "none": float("inf")}
    trace = read_space({"/host:CPU": {"python": [Slice("a", 0, 1, **stats), Slice("b", 2, 1)]}})
    assert trace.event_arguments(0) == {**stats, "raw": "bytes", "none": "inf"}
    assert trace.event_arguments(1) == {}


def test_allocations_are_rows_of_memory() -> None:
    stats = {"allocator_name": "GPU_1_bfc", "allocation_bytes": 512, "addr": 64}
    line = [
        Slice("MemoryAllocation", 0, 0, bytes_allocated=512, **stats),
        Slice("MemoryDeallocation", 5, 0, bytes_allocated=0, **stats),
    ]
    trace = read_space({"/host:CPU": {"python": line}})
    columns = ("time_ns", "device", "address", "bytes", "allocated_bytes")
    assert [tuple(row[name] for name in columns) for row in trace["memory"].rows()] == [
        (0, "gpu:1", 64, 512, 512),
        (5000, "gpu:1", 64, -512, 0),
    ]


def test_arrows_between_threads() -> None:
    trace = read_space(
        {
            "/host:CPU": {
                "a": [Slice("produce", 0, 5, _pt=3, _p=77)],
                "b": [Slice("consume", 9, 5, _ct=3, _c=77)],
            }
        }
    )
    assert list(trace["flows"].rows()) == [{"kind": "flow 3", "source_event": 0, "target_event": 1}]


def test_gzip_makes_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb.gz"
    path.write_bytes(gzip.compress(xspace({"/host:CPU": {"python": [Slice("a", 0, 1)]}})))
    trace = read(path)
    assert (trace.metadata.format, len(trace.events)) == ("XLA profile", 1)


def test_what_the_profiler_says_of_itself() -> None:
    space = xspace({"/host:CPU": {"python": [Slice("a", 0, 1)]}})
    trace = read_bytes(space + message((2, "no device"), (3, "buffer full"), (4, "host-7")))
    messages = [row["message"] for row in trace["warnings"].rows()]
    assert messages == ["the recorder reported: no device", "the recorder reported: buffer full"]
    assert trace.metadata.properties["hostnames"] == ["host-7"]


def test_a_file_that_is_cut_gives_what_it_holds() -> None:
    space = xspace({"/host:CPU": {"python": [Slice("a", 0, 1), Slice("b", 2, 1)]}})
    trace = read_bytes(space[: space.index(b"python") + 27])
    assert rows(trace, "name") == [("event 1",)]
    assert set(told(trace)) >= {"damaged_message", "unnamed_event"}


def test_events_without_a_time_of_their_own_are_set_aside() -> None:
    aggregated = message((1, 1), (5, 1000), (3, 5))
    early, long = message((1, 1), (2, 2**63)), message((1, 1), (2, 5), (3, 2**63 - 1))
    line = message((2, "python"), (3, ORIGIN_NS), (4, aggregated), (4, early), (4, long))
    trace = read_bytes(message((1, message((2, "/host:CPU"), (3, line)))))
    assert rows(trace, "duration_ns") == [(0,)]
    assert told(trace) == {"bad_timestamp": 2, "long_duration": 1, "unnamed_event": 1}


def test_text_that_is_not_unicode() -> None:
    space = xspace({"/host:CPU": {"python": [Slice("abcd", 0, 1)]}}).replace(b"abcd", b"ab\xff\xfe")
    trace = read_bytes(space)
    assert rows(trace, "name") == [("ab��",)]
    assert told(trace) == {"invalid_text": 1}


@pytest.mark.parametrize(
    "data",
    [
        xspace({"/host:CPU": {}}),
        xspace({"/host:CPU": {"python": []}}),
        part(1, b"\x12\x09/host:CPU" + varint(3 << 3 | 2) + varint(2**40)),
        part(1, "/"),
    ],
    ids=["no line", "no event", "a length of a terabyte", "no name"],
)
def test_nothing_in_it(data: bytes) -> None:
    with pytest.raises(IngestError, match="the XLA profile holds no readable event"):
        read_bytes(data)


def test_progress_is_told() -> None:
    data = xspace({"/host:CPU": {"python": [Slice("a", 0, 1)]}})
    sizes: list[int] = []
    read_xplane(io.BytesIO(data), False, sizes.append)
    assert sum(sizes) == len(data)


def test_the_real_file(traces: Path) -> None:
    trace = read(traces / "jax_xplane/conv_mi300x.xplane.pb")
    assert trace.metadata.framework == "jax"
