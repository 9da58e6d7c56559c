"""What is known of the real traces, found by the whole way from file to report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.summary.report_facts import summarize
from stepscope.trace.trace import Trace


@pytest.fixture(scope="module")
def resnet(opened: Callable[[str], Trace]) -> Trace:
    return opened("kineto_resnet50_v100/num_workers_0.json.gz")


@pytest.fixture(scope="module")
def checkpointed(opened: Callable[[str], Trace]) -> Trace:
    return opened("resnet_ddp_mi300x/rank0_act_checkpoint.json.gz")


def share(trace: Trace, rows: np.ndarray, of: np.ndarray) -> float:
    time = trace.events["duration_ns"]
    return float(time[rows & of].sum() / time[of].sum())


def test_step_5_takes_as_long_as_kineto_says(resnet: Trace) -> None:
    """Kineto's own overview of this file says the same, in microseconds."""
    row = next(row for row in resnet["steps"].rows() if row["step"] == 5)
    assert row["end_ns"] - row["start_ns"] == pytest.approx(176_078e3, rel=0.01)
    assert row["device_end_ns"] - row["start_ns"] == pytest.approx(187_948e3, rel=0.01)
    events = resnet.events
    mine = events["step"] == 5
    time = events["duration_ns"]
    kernels = int(time[mine & events.text("category").mask("kernel")].sum())
    copies = int(time[mine & events.text("category").mask("memcpy")].sum())
    assert kernels == pytest.approx(98_598e3, rel=0.01)
    assert copies == pytest.approx(1_941e3, rel=0.01)


def test_step_5_loads_data_for_69_ms(resnet: Trace) -> None:
    assert summarize(resnet, step=5).data_wait_ms == pytest.approx(68.694, rel=0.01)


def test_the_step_waits_for_data_until_workers_load_it(resnet: Trace, opened: Callable[[str], Trace]) -> None:
    with_workers = opened("kineto_resnet50_v100/num_workers_4.json.gz")
    assert summarize(resnet).verdict.bound_by == "data"
    assert "waits for data" in summarize(resnet).verdict.sentence
    assert summarize(with_workers).verdict.bound_by != "data"
    assert "data" not in summarize(with_workers).verdict.sentence


def test_every_stage_of_the_loop_is_found(resnet: Trace) -> None:
    found = [one.stage for one in summarize(resnet).stages]
    assert found == [
        "data_loading",
        "transfer",
        "forward",
        "loss",
        "zero_grad",
        "backward",
        "optimizer",
        "other",
    ]


def test_device_time_in_steps_has_a_stage_and_a_module(checkpointed: Trace) -> None:
    events = checkpointed.events
    inside = device_work(checkpointed) & (events["step"] >= 0)
    assert len(checkpointed["steps"]) == 3
    assert share(checkpointed, events["stage"] >= 0, inside) >= 0.98
    model = inside & events.text("stage").mask("forward", "backward")
    assert share(checkpointed, events["module"] >= 0, model) >= 0.95
    computing = model & ~events.text("category").mask("communication")
    assert share(checkpointed, events["module"] >= 0, computing) >= 0.95


def test_recomputation_is_not_booked_as_forward(checkpointed: Trace) -> None:
    """Each checkpointed block runs its convolutions forward once, and once more in backward."""
    events = checkpointed.events
    convolution = events.text("name").mask("aten::miopen_convolution") & (events["step"] >= 0)
    again = events["recompute"] == 1
    stage = events.text("stage")
    assert not (again & stage.mask("forward")).any()
    assert stage.mask("backward")[again & convolution].all()
    forward = int((convolution & stage.mask("forward")).sum())
    recomputed = int((convolution & again).sum())
    assert 0 < recomputed <= forward
    modules = checkpointed["modules"]
    assert modules["recompute_device_ns"].max() > 0
    frames = events.text("category").mask("python") & events.text("name").where(
        lambda name: name.startswith("nn.Module: Bottleneck") or "CheckpointWrapper" in name
    )
    assert stage.mask("forward")[frames & ~again].all()


def test_eight_ranks_open_as_one_with_tables_for_each(opened: Callable[[str], Trace]) -> None:
    trace = opened("dlrm_8rank_v100")
    assert trace.metadata.ranks == tuple(range(8))
    for table in ("steps", "stages", "tracks"):
        assert set(trace[table]["rank"].tolist()) == set(range(8))
    for rank in range(8):
        alone = opened(f"dlrm_8rank_v100/rank{rank}.json.gz")
        together, apart = summarize(trace, rank), summarize(alone)
        assert together.verdict == apart.verdict
        assert together.kernels == apart.kernels
        assert [one.cpu_ms for one in together.stages] == pytest.approx([one.cpu_ms for one in apart.stages])


def test_one_ranks_gpu_idles_about_half_of_the_step(opened: Callable[[str], Trace]) -> None:
    """And most communication is exposed, as the traces' own description says."""
    trace = opened("dlrm_8rank_v100")
    devices = [summarize(trace, rank).devices[0] for rank in range(8)]
    busy = [(one.computing_ms + one.idle_ms["communication"]) / one.window_ms for one in devices]
    assert any(0.4 < 1 - share_ < 0.6 for share_ in busy)
    for one in devices:
        assert one.overlapped_ms < 0.5 * one.communication_ms


def test_on_every_trace_sums_agree(traces: Path, opened: Callable[[str], Trace]) -> None:
    """Invariants that hold whatever was recorded."""
    for path in sorted(traces.glob("*/*.json.gz")):
        if path.name == "execution_trace.json.gz":
            continue
        trace = opened(str(path.relative_to(traces)))
        events, runs, steps = trace.events, trace["stages"], trace["steps"]
        length = (steps["end_ns"] - steps["start_ns"]).sum()
        assert (runs["end_ns"] - runs["start_ns"]).sum() == length, path
        assert (runs["device_ns"] <= np.maximum(runs["device_end_ns"] - runs["device_start_ns"], 0)).all(), (
            path
        )
        assert (events["self_ns"] >= 0).all(), path
        assert (events["self_ns"] <= events["duration_ns"]).all(), path
        linked = trace["launches"]
        assert (events["step"][linked["device_event"]] == events["step"][linked["cpu_event"]]).all()
        for device in summarize(trace).devices:
            total = device.computing_ms + sum(device.idle_ms.values())
            assert device.computing_ms >= 0, path
            assert total == pytest.approx(device.window_ms), path


def test_a_graph_launch_starts_all_its_kernels(opened: Callable[[str], Trace]) -> None:
    trace = opened("cuda_graph_vllm/graph_execution.json.gz")
    launches, names = trace["launches"], trace.events.text("name")
    by_call = np.bincount(launches["cpu_event"])
    assert names[int(by_call.argmax())] in ("cudaGraphLaunch", "hipGraphLaunch")
    assert by_call.max() > 300
    assert len(trace["warnings"].text("code").mask("unlinked_device_work").nonzero()[0]) == 0
