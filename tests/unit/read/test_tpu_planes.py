"""Planes of TPUs and of traces inside devices, written as libtpu and XProf name them.

Source of the names: xplane_schema.cc (https://github.com/openxla/xla) and, of xprof
(https://github.com/openxla/xprof), xspace_loader_test.cc, preprocess_xplane_test.cc and
host_offload_utils.cc. No profile of a TPU could be had.
"""

from __future__ import annotations

import pytest
from xspaces import Slice, read_space

from stepscope.facts.annotate import annotate
from stepscope.trace.trace import Trace

MODULES = [Slice("jit_step(1)", 100, 300, run_id=88), Slice("jit_step(1)", 400, 300, run_id=89)]
CALLS = [Slice("TpuExecutable", 10, 5, run_id=88), Slice("TpuExecutable", 30, 5, run_id=89)]


def kinds(trace: Trace, plane: str) -> dict[str, str]:
    """The category of the events of a plane, by name."""
    tracks = trace["tracks"]
    inside = [row["process"] == plane for row in tracks.rows()]
    return {row["name"]: row["category"] for row in trace.events.rows() if inside[row["track"]]}


def test_only_the_operations_of_a_sparse_core_are_its_work() -> None:
    plane = "/device:TPU:1 SparseCore 0"
    lines = {
        "Sparse Core Steps": [Slice("4", 100, 80)],
        "Sparse Core Modules": [Slice("sc_offload(0)", 110, 38)],
        "Sparse Core Ops": [Slice("gather_offload.1", 111, 10)],
        "Sparse Core Syncs": [Slice("sc_sync", 125, 5)],
    }
    trace = read_space({plane: lines})
    assert kinds(trace, plane) == {
        "4": "annotation",
        "sc_offload(0)": "annotation",
        "gather_offload.1": "kernel",
        "sc_sync": "annotation",
    }
    assert set(trace["tracks"]["device"].tolist()) == {1}


def test_a_sparse_core_that_runs_beside_a_tensor_core_has_its_own_runs() -> None:
    trace = read_space(
        {
            "/device:TPU:0": {
                "XLA Modules": MODULES,
                "XLA Ops": [Slice("fusion.1", 390, 9), Slice("fusion.1", 400, 200)],
            },
            "/device:TPU:0 SparseCore 0": {
                "Sparse Core Modules": [Slice("sc_offload(0)", 385, 100, run_id=88)],
                "Sparse Core Ops": [Slice("gather.1", 386, 4), Slice("gather.1", 410, 9)],
            },
            "/host:CPU": {"main": CALLS},
        }
    )
    run = {
        (row["name"], row["start_ns"] // 1000): row["correlation"]
        for row in trace.events.rows()
        if row["category"] == "kernel"
    }
    assert list(run.values()) == [88, 88, 89, 88]


def test_the_device_of_a_sparse_core_is_described_by_its_own_plane() -> None:
    core = {"/device:TPU:0 SparseCore 0": {"Sparse Core Ops": [Slice("a", 0, 1)]}}
    trace = read_space(core | {"/device:TPU:0": {"XLA Ops": [Slice("b", 0, 1)]}})
    assert trace.metadata.devices == ({"id": 0, "name": "TPU"},)


@pytest.mark.parametrize(
    "line",
    [
        "Scalar Unit",
        "TC Overlay",
        "_counters_",
        "counters_0",
        "Tensor Core Sync Flag",
        "Host Offload Ops row 0",
        "XLA TraceMe",
    ],
)
def test_other_lines_of_a_tensor_core_are_no_work(line: str) -> None:
    plane = {"XLA Ops": [Slice("fusion.1", 0, 9)], line: [Slice("inside", 1, 3)]}
    found = kinds(read_space({"/device:TPU:0": plane}), "/device:TPU:0")
    assert found == {"fusion.1": "kernel", "inside": "annotation"}


def test_actions_between_slices_are_shown_and_no_work_of_a_device() -> None:
    """Their durations are an artifact of drawing them in one line; the waits are operations."""
    key = {"graph_key": "device_200000_gid_all-reduce.7$1^i0", "action_duration_ns": 47_200_000}
    trace = read_space(
        {
            "/device:CUSTOM:Megascale Trace": {
                "rendezvous": [
                    Slice("DeviceToHost END", 10, 5, **key),
                    Slice("NetworkSend END", 15, 30, **key),
                    Slice("NetworkReceive END", 45, 40, **key),
                ]
            },
            "/device:TPU:3": {"XLA Ops": [Slice("recv-done.7", 20, 60)]},
        }
    )
    assert set(kinds(trace, "/device:CUSTOM:Megascale Trace").values()) == {"annotation"}
    assert [device["id"] for device in trace.metadata.devices] == [3]
    assert trace.event_arguments(0)["action_duration_ns"] == 47_200_000


def test_a_trace_inside_a_mosaic_kernel_is_no_device() -> None:
    trace = read_space(
        {
            "/device:GPU:0": {"Stream #7": [Slice("mosaic_kernel", 0, 50)]},
            "/device:CUSTOM:MOSAIC:12": {"warp 0": [Slice("load", 1, 9), Slice("mma", 10, 30)]},
        }
    )
    assert kinds(trace, "/device:CUSTOM:MOSAIC:12") == {"load": "annotation", "mma": "annotation"}
    assert [device["id"] for device in trace.metadata.devices] == [0]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("all-reduce.3", "communication"),
        ("all-gather-start.1", "communication"),
        ("all-gather-done.1", "communication"),
        ("collective-permute-start", "communication"),
        ("async-collective-start.1", "communication"),
        ("async-collective-done.1", "communication"),
        ("async-collective-fusion.1", "kernel"),
        ("send.123", "communication"),
        ("send-done.123", "communication"),
        ("recv.5", "communication"),
        ("recv-done.5", "communication"),
        ("copy-start.2", "memcpy"),
        ("copy-done.2", "memcpy"),
        ("async-copy", "memcpy"),
        ("async-copy.3", "memcpy"),
        ("slice-start.1", "memcpy"),
        ("dynamic-update-slice-done", "memcpy"),
        ("slice.1", "kernel"),
        ("copy.2", "kernel"),
        ("send_gradients_fusion", "kernel"),
        ("while.1", "annotation"),
    ],
)
def test_collectives_and_copies_by_the_compilers_names(name: str, category: str) -> None:
    lines = {"XLA Modules": MODULES, "XLA Ops": [Slice(name, 110, 90)]}
    trace = annotate(read_space({"/device:TPU:0": lines, "/host:CPU": {"main": CALLS}}))
    assert kinds(trace, "/device:TPU:0")[name] == category


def test_a_collective_that_computing_hides_is_not_exposed() -> None:
    """The asynchronous line has it from start to done; the wait is an operation."""
    lines = {
        "Steps": [Slice("4", 100, 300)],
        "XLA Modules": MODULES[:1],
        "XLA Ops": [
            Slice("fusion.1", 100, 200),
            Slice("all-gather-done.1", 300, 50),
            Slice("fusion.2", 350, 50),
        ],
        "Async XLA Ops": [Slice("all-gather-start.1", 120, 230)],
    }
    trace = annotate(read_space({"/device:TPU:0": lines, "/host:CPU": {"main": CALLS}}))
    exposed = [row for row in trace["idle"].rows() if row["cause"] == "communication"]
    assert sum(row["end_ns"] - row["start_ns"] for row in exposed) == 50_000


def test_a_copy_of_any_name_is_known_by_its_category() -> None:
    lines = {
        "XLA Modules": MODULES,
        "Async XLA Ops": [Slice("move", 110, 90, hlo_category="copy-start")],
        "XLA Ops": [Slice("move.wait", 110, 90, hlo_category="copy-done"), Slice("fusion", 200, 9)],
    }
    trace = annotate(read_space({"/device:TPU:0": lines, "/host:CPU": {"main": CALLS}}))
    found = kinds(trace, "/device:TPU:0")
    assert (found["move"], found["move.wait"], found["fusion"]) == ("memcpy", "memcpy", "kernel")


@pytest.mark.parametrize(("feed", "cause"), [("infeed.1", "data"), ("outfeed.3", "host")])
def test_a_program_waits_for_the_host_in_a_feed_also_in_the_first_marked_step(feed: str, cause: str) -> None:
    """Each step is called for before the device begins it, and waits 60 us of 90."""
    begins = range(1000, 1500, 100)
    trace = annotate(
        read_space(
            {
                "/device:TPU:0": {
                    "Steps": [Slice(str(n), at, 90) for n, at in enumerate(begins)],
                    "XLA Modules": [Slice("jit_step(1)", at, 90, run_id=at) for at in begins],
                    "XLA Ops": [Slice(feed, at, 60) for at in begins]
                    + [Slice("fusion.1", at + 60, 30) for at in begins],
                },
                "/host:CPU": {"main": [Slice("TpuExecutable", at - 80, 5, run_id=at) for at in begins]},
            }
        )
    )
    steps, idle = trace["steps"], trace["idle"]
    window = steps["window_end_ns"] - steps["window_start_ns"]
    assert (window // 1000).tolist() == [100, 100, 100, 100, 90]
    assert (steps["device_busy_ns"] // 1000).tolist() == [30] * 5
    waits = idle.text("cause").mask(cause)
    assert int((idle["end_ns"] - idle["start_ns"])[waits].sum()) == 5 * 60_000
