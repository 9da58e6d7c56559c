"""The kit that measures on a GPU, run whole on a CPU with tiny models, so that it never rots."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.gpu.__main__ import in_process
from benchmarks.gpu.accuracy import report
from benchmarks.gpu.case import Case
from benchmarks.gpu.comparisons import jax_steps, snapshots, stage_times
from benchmarks.gpu.coverage import coverage
from benchmarks.gpu.index import _evidence, index
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.part import outcome, take
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.parts.batch_sizes import next_size
from benchmarks.gpu.parts.captures import KINDS, wanted
from benchmarks.gpu.parts.layouts import cases
from benchmarks.gpu.parts.optimizers import ADAMS
from benchmarks.gpu.parts.overheads import Turns, judged
from benchmarks.gpu.parts.precision import PRECISIONS
from benchmarks.gpu.parts.stalls import summary
from benchmarks.gpu.predictions import Outcome, batch_sizes, outcomes, replay_errors
from benchmarks.gpu.results import OtherRun, Results
from benchmarks.gpu.script import STEPS, training_script
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.training import STAGES, Training
from gpu_kit import ENVIRONMENT, QUICK, ROOT, kit, kit_in_forks
from stand_in import build_stand_in

import stepscope

Json = dict[str, Any]


def part(name: str, out: Path, seconds: float = 3600) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    options = [name, *QUICK, "--out", out, "--seconds", seconds]
    command = [sys.executable, "-m", "benchmarks.gpu.part", *map(str, options)]
    environment = {**ENVIRONMENT, "PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def results_of(out: Path) -> dict[str, Json]:
    return {name: json.loads((out / f"{name}.json").read_text()) for name in PARTS}


# -- the whole kit


def test_the_whole_kit(tmp_path):
    done = kit_in_forks(tmp_path / "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    parts = results_of(tmp_path / "cpu")
    measured = {name: measurements(content) for name, content in parts.items()}
    check_models(measured["models"])
    check_step_times(measured)
    check_captures(tmp_path / "cpu", measured)
    check_stages(tmp_path / "cpu", measured["stages"])
    check_jax(tmp_path / "cpu", measured["jax_steps"])
    page = index(tmp_path)
    assert all(f"### {name}: " in page for name in PARTS)
    assert "Not run" not in page
    check_predictions(tmp_path / "cpu")


def measurements(content: Json) -> dict[str, Json]:
    """What a part measured; whatever else it has must have been for want of a GPU."""
    assert content["complete"]
    assert content["quick"]
    assert content["runs"][0]["machine"]["packages"]["torch"]
    measured = {}
    for key, one in content["measurements"].items():
        if one["outcome"] == "measured":
            measured[key] = one
        else:
            assert one["error"].endswith("needs a GPU"), (key, one)
    return measured


def check_models(measured: dict[str, Json]) -> None:
    assert set(measured) == set(MODELS)
    for one in measured.values():
        assert one["parameter_bytes"] == 4 * one["parameters"] > 0
        assert all(math.isfinite(loss) for loss in one["losses"])
        assert len(set(one["losses"])) == len(one["losses"])


def check_step_times(measured: dict[str, dict[str, Json]]) -> None:
    for name in ("precision", "optimizers", "layouts", "loading", "batch_sizes", "compiled"):
        for one in measured[name].values():
            times = one["step_ms"]
            low, high = times["quartiles"]
            assert 0 < times["min"] <= low <= times["median"] <= high <= times["max"]
    sizes = [one["samples"] for key, one in measured["batch_sizes"].items() if "dlrm" in key]
    assert sizes == [2**power for power in range(1, 10)]
    assert {key.partition("/")[2] for key in measured["layouts"]} == {
        "plain",
        "channels_last",
        "bf16",
        "bf16 channels_last",
        "checkpointing",
    }
    tools = measured["overheads"]["dlrm"]["tools"]
    assert set(tools) == {"nothing", "torch.profiler", "stepscope", "stepscope contexts"}
    assert all("error" not in cost for cost in tools.values()), tools
    assert tools["stepscope contexts"]["collector"] in ("native", "python")


def check_captures(out: Path, measured: dict[str, dict[str, Json]]) -> None:
    assert {key.partition("/")[2] for key in measured["captures"]} == set(KINDS)
    for one in measured["captures"].values():
        assert (out / one["file"]).stat().st_size == one["bytes"] <= one["recorded_bytes"]
    files = {Path(one["file"]).name for one in measured["captures"].values()}
    assert set(measured["annotation"]) == files
    for one in measured["annotation"].values():
        assert one["steps"] in ([5], [5, 6, 7])
        assert one["work"] == "operators"
        assert one["staged_by_count"] > 0.99
        assert one["in_modules_by_count"] > 0.97
        assert not one["warnings"]


def check_stages(out: Path, measured: dict[str, Json]) -> None:
    for one in measured.values():
        assert set(one["cpu_ms"]) == set(STAGES)
        assert not one["device_ms"]  # there is no device
        whole = sum(times["median"] for times in one["cpu_ms"].values())
        assert whole > 0
    found = {(one.model, one.stage): one for one in stage_times(out)}
    assert set(found) == {("dlrm", stage) for stage in STAGES}
    corrected = [found["dlrm", stage] for stage in ("forward", "backward", "optimizer")]
    assert all(0 < one.corrected <= one.recorded for one in corrected)


def check_jax(out: Path, measured: dict[str, Json]) -> None:
    (one,) = measured.values()
    assert one["same_loss"]
    assert (out / one["file"]).stat().st_size == one["bytes"]
    ((name, unwatched, after, recorded),) = jax_steps(out)
    assert name == "transformer"
    assert min(unwatched, after, recorded) > 0


def check_predictions(device: Path) -> None:
    assert max(map(abs, replay_errors(device).values())) < 0.02
    found = {(one.model, one.change): one for one in outcomes(device)}
    assert ("dlrm", "amp (bf16)") in found
    fused = found["dlrm", "fused_optimizer (fused)"]  # without a GPU a matter of the machine
    assert fused.predicted_ms or "stepscope calibrate" in fused.reason
    assert found["resnet50", "dataloader (one batch)"].predicted_ms
    (sizes,) = (one for one in batch_sizes(device) if one.model == "dlrm")
    assert {2, 512} < set(sizes.fitted)  # both ends; the others follow times of this machine
    assert sizes.predicted
    assert not {*sizes.predicted} & {*sizes.fitted}
    check_report(report(device))


def check_report(told: str) -> None:
    assert told.startswith("### cpu\n")
    assert "| in a stage |" in told
    assert "The unchanged replay of 4 captures" in told
    assert "| backward |" in told
    assert "Steps of JAX" in told
    assert "| amp (bf16) |" in told
    assert "DAYDREAM: at most 13 %" in told
    assert "| all |" in told
    assert "| dlrm | stepscope contexts |" in told


def test_what_decides_most_is_cut_anywhere_and_goes_on(tmp_path, monkeypatch):
    """The kit of fourteen minutes, in this process; the tiny ResNet takes too long for a test."""
    monkeypatch.setattr("benchmarks.gpu.setting._QUICK", ("dlrm",))
    setting, run = Setting("cpu", True, tmp_path), {"machine": {}}
    about = {"device": "cpu", "quick": True, "seed": 0, "about": ""}
    cut = Results(tmp_path / "evidence.json", about, run)
    take("evidence", setting, cut, seconds=-1)
    assert not cut.measurements
    whole = Results(tmp_path / "evidence.json", about, run)
    take("evidence", setting, whole, seconds=3600)
    assert whole.complete
    assert {one["outcome"] for one in whole.measurements.values()} == {"measured"}
    names = ("precision/dlrm/fp32", "precision/dlrm/fp32 again", "size/dlrm/16", "operators/dlrm")
    assert set(names) <= set(whole.measurements)
    profile = whole.measurements["precision/dlrm/bf16"]["file"]
    assert stepscope.open(tmp_path / profile, cache=False).events.text("name").mask("aten::linear").any()
    assert "| precision/dlrm/bf16 |" in _evidence(whole.measurements)


def test_results_of_two_machines_are_not_mixed(tmp_path):
    about = {"device": "cpu", "quick": True, "seed": 0}
    Results(tmp_path / "a.json", about, {"machine": {"processor": "A", "cpu_count": 2}}).begin("first")
    with pytest.raises(OtherRun, match="two machines are not mixed"):
        Results(tmp_path / "a.json", about, {"machine": {"processor": "B", "cpu_count": 2}})


def test_work_of_a_device_is_told_from_that_of_operators(traces):
    found = coverage(traces / "resnet_ddp_mi300x" / "rank0_act_checkpoint.json.gz")
    assert found["work"] == "device"
    assert found["launched"] == 1  # of what was launched while the profiler ran
    assert found["staged"] == 1
    assert 0.99 < found["in_modules"] < 1
    assert found["steps"] == [15, 16, 17]
    assert found["ms_per_step"] > np.mean(found["device_busy_ms"]) > 0


# -- what is predicted from it


@pytest.mark.parametrize(
    ("before", "predicted", "measured", "right"),
    [
        (100, 80, 90, True),
        (100, 110, 120, True),
        (100, 80, 120, False),
        (100, 99, 110, True),  # next to nothing was predicted
        (100, None, 120, True),
    ],
)
def test_a_gain_that_is_a_loss_has_the_wrong_sign(before, predicted, measured, right):
    assert Outcome("gpt2", "amp (bf16)", before, predicted, measured).right_sign == right


def test_both_ends_and_the_usual_batch_size_are_fitted(tmp_path):
    sizes = {
        n: {"samples": n, "step_ms": {"median": 5.0 + n}, "peak_allocated_bytes": 100 + 7 * n}
        for n in (2, 4, 8, 16, 32, 64)
    }
    measured = {f"gpt2/{n}": {"outcome": "measured", **one} for n, one in sizes.items()}
    measured["gpt2/128"] = {"outcome": "out of memory"}
    (tmp_path / "batch_sizes.json").write_text(json.dumps({"measurements": measured}))
    (found,) = batch_sizes(tmp_path)
    assert (found.model, found.fitted, found.predicted) == ("gpt2", (2, 8, 64), (4, 16, 32))
    assert max(found.throughput) == pytest.approx(0)
    assert max(found.memory) == pytest.approx(0)


def test_peaks_of_a_snapshot_stand_next_to_those_of_pytorch(tmp_path, traces):
    """A snapshot of the shared ones, as the part `snapshot` would have left it."""
    source = next((traces / "memory_snapshots").glob("*.pickle*"))
    (tmp_path / source.name).write_bytes(source.read_bytes())
    one = {"outcome": "measured", "file": source.name, "peak_allocated_bytes": 7, "peak_reserved_bytes": 9}
    (tmp_path / "snapshot.json").write_text(json.dumps({"measurements": {"resnet50": one}}))
    ((model, allocated, ours, reserved, ours_reserved),) = snapshots(tmp_path)
    assert (model, allocated, reserved) == ("resnet50", 7, 9)
    assert 0 < ours <= ours_reserved


# -- what is measured


@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_a_step_in_every_way(model, tmp_path, monkeypatch):
    import torch

    if model == "gnmt":  # which precisions oneDNN has recurrent layers for depends on the processor
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    ways = [Case(model, precision=precision) for precision in PRECISIONS]
    ways += [Case(model, adam=adam) for adam in ADAMS]
    ways += cases(model).values()
    for case in dict.fromkeys(ways):
        assert math.isfinite(Training(case, Setting("cpu", True, tmp_path)).step().item()), case


def test_the_models_are_those_that_are_known_by_their_names():
    import torch

    known = {
        "resnet50": 25_557_032,
        "unet": 31_037_633,
        "gpt2": 124_439_808,
        "bert_base": 109_514_298,
        "bert_large": 335_174_458,
    }
    for name, parameters in known.items():
        with torch.device("meta"):
            model = MODELS[name].build(False)
        assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_captured_script_takes_the_steps_whose_times_are_measured(tmp_path, capsys):
    setting = Setting("cpu", True, tmp_path)
    exec(compile(training_script("dlrm", setting), "script.py", "exec"), {})
    printed = float(capsys.readouterr().out.split()[-1])
    training = Training(Case("dlrm"), setting)
    losses = [training.step().item() for _ in range(STEPS)]
    assert losses[-1] == pytest.approx(printed, rel=1e-5)
    assert losses[0] != pytest.approx(printed, rel=1e-2)


def test_every_kind_of_capture_is_taken_of_some_model():
    for quick in (True, False):
        assert all(any(wanted(model, kind, quick) for model in MODELS) for kind in KINDS)
    assert all(wanted(model, kind, False) for model in MODELS for kind in ("plain", "stacks"))


@pytest.mark.parametrize(("room", "first"), [(1000, 1), (100, 2), (37, 1), (9, 1), (4096, 16)])
def test_batch_sizes_close_in_on_the_edge_of_memory(room, first):
    fits, tried, too_large = [], [], None
    while size := next_size(fits, too_large, first, largest=4096):
        assert size not in tried
        tried.append(size)
        if size <= room:
            fits.append(size)
        else:
            too_large = size
    assert len(fits) >= 9
    if too_large:
        assert max(fits) <= room < too_large <= max(1.15 * max(fits), max(fits) + 1)
    else:
        assert max(fits) == 4096


def test_no_batch_size_follows_where_the_first_does_not_fit():
    assert next_size([], too_large=1, first=1, largest=64) is None


# What `stepscope run --contexts --stalls` leaves: two calls of one kernel, one of another.
SAMPLED = {
    "strings": ["", "aten::mm", "gemm", "copy", "long_scoreboard", "selected", "gemm+0x00d0"],
    "kinds": ["root", "operator", "kernel", "instruction"],
    "nodes": {
        "parent": [-1, 0, 1, 2, 3, 2, 0, 6, 7, 1],
        "kind": [0, 1, 2, 3, 3, 3, 1, 2, 3, 2],
        "name": [0, 1, 2, 4, 6, 5, 1, 2, 4, 3],
    },
    "metrics": {
        "device_ns": {"node": [2, 7, 9], "sum": [500, 300, 200]},
        "stalls": {"node": [3, 4, 5, 8], "sum": [10, 50, 20, 20]},
        "latency_stalls": {"node": [4], "sum": [45]},
    },
}


def test_samples_of_a_kernel_are_put_together_over_its_calls():
    found = summary(SAMPLED)
    assert (found["samples"], found["latency_samples"]) == (100, 45)
    assert (found["kernels"], found["kernels_sampled"]) == (2, 1)
    gemm, copy = found["hottest"]
    assert gemm == {
        "kernel": "gemm",
        "share_of_device_time": 0.8,
        "share_of_samples": 1.0,
        "reasons": {"long_scoreboard": 0.8, "selected": 0.2},
        "instructions": {"gemm+0x00d0": 0.5},
    }
    assert (copy["kernel"], copy["reasons"]) == ("copy", {})


# A step of the kit's own training that launches a kernel, in a library that stands in for CUPTI.
LAUNCHING = """
import ctypes, json, sys
from pathlib import Path
from benchmarks.gpu.parts import stalls
from benchmarks.gpu.setting import Setting
cupti = ctypes.CDLL(sys.argv[1])
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]

class Launching(stalls.Training):
    def step(self, host=None):
        cupti.fake_launch(b"gemm", 0, 1000)
        return super().step(host)

stalls.Training = Launching
print(json.dumps(stalls.sample("dlrm", Setting("cpu", True, Path(sys.argv[2])))))
"""


def test_samples_are_taken_of_steps_of_training(tmp_path):
    library = build_stand_in("fake_cupti", tmp_path)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHING, str(library), str(tmp_path)],
        env={**ENVIRONMENT, "PYTHONPATH": path, "STEPSCOPE_CUPTI": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sampled_steps"] == 3
    assert found["samples"] == 3 * 12
    assert found["step_ms"]["count"] == found["sampled_step_ms"]["count"] == 2
    assert found["against_nothing"] > 0
    (gemm,) = found["hottest"]
    assert list(gemm["reasons"]) == ["long_scoreboard", "imc_miss", "selected"]
    assert next(iter(gemm["instructions"].items())) == ("gemm+0x00d0", 0.5)
    assert (tmp_path / found["file"]).stat().st_size == found["bytes"]


def test_the_page_tells_what_kernels_wait_for(tmp_path):
    about = {"part": "stalls", "about": "waiting", "device": "d", "quick": False, "seed": 0}
    machine = {
        "packages": {},
        "device": {"name": "d"},
        "cuda": "13.0",
        "python": "3.12",
        "processor": "p",
        "cpu_count": 2,
    }
    results = Results(tmp_path / "d" / "stalls.json", about, run={"machine": machine})
    results.add("resnet50", {"outcome": "measured", "against_nothing": 3.5, **summary(SAMPLED)})
    results.end()
    told = "| 3.50 | 100 | gemm | 80.00 % | 100.00 % | long_scoreboard 80%, selected 20% |"
    assert told in index(tmp_path)


def test_a_tool_that_fails_leaves_the_others_their_figures():
    plain, slower = [{"ms": 10.0}, {"ms": 20.0}], [{"ms": 15.0}, {"ms": 40.0, "about": {"n": 1}}]
    broken = [{"error": "RuntimeError: no"}]
    found = judged({"nothing": plain, "slow": slower, "broken": broken}, steps=8)
    assert found["step_ms"]["median"] == 15
    assert found["tools"]["slow"]["against_nothing"]["median"] == pytest.approx(1.75)
    assert found["tools"]["slow"]["n"] == 1
    assert found["tools"]["broken"] == {"error": "RuntimeError: no"}
    with pytest.raises(RuntimeError, match="no"):
        judged({"nothing": broken, "slow": slower}, steps=8)


def test_a_tool_whose_process_dies_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Turns("dlrm", "nothing", 1, Setting("cpu", True, tmp_path)) as turns:
        assert turns.answer() == {"error": "its process ended: 1"}
        assert turns.take() == {"error": "its process ended: 1"}


# -- failures


def test_out_of_memory_is_a_result_and_so_is_a_failure():
    import torch

    def too_large() -> Json:
        raise torch.OutOfMemoryError("no room")

    def wrong() -> Json:
        raise ValueError("not so")

    def too_large_for_a_library() -> Json:
        raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")

    assert outcome(too_large, "cpu")["outcome"] == "out of memory"
    assert outcome(too_large_for_a_library, "cpu")["outcome"] == "out of memory"
    failed = outcome(wrong, "cpu")
    assert failed["outcome"] == "failed"
    assert failed["error"] == "ValueError: not so"


def opened(path: Path, **about: Any) -> Results:
    return Results(path, {"device": "d", "quick": True, "seed": 0, **about}, run={"begun": "now"})


def test_a_measurement_that_takes_the_process_down_twice_is_given_up(tmp_path):
    path = tmp_path / "part.json"
    assert opened(path).begin("bad")
    assert opened(path).begin("bad")
    results = opened(path)
    assert not results.begin("bad")
    assert results.measurements["bad"]["outcome"] == "died"
    results.forget_failures()
    assert results.begin("bad")


def test_results_of_another_device_are_not_gone_on_with(tmp_path):
    path = tmp_path / "part.json"
    opened(path).add("one", {"outcome": "measured"})
    with pytest.raises(OtherRun, match=r"expected results of device 'e' in .*--out"):
        opened(path, device="e")


# -- going on


def test_a_part_without_time_lists_what_it_put_off_and_goes_on_later(tmp_path):
    late = part("optimizers", tmp_path, seconds=0)
    assert late.returncode == 1
    content = json.loads((tmp_path / "optimizers.json").read_text())
    assert not content["complete"]
    assert len(content["not_measured"]) == 6
    assert not content["measurements"]


def test_a_killed_part_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "precision.json"
    command = [sys.executable, "-m", "benchmarks.gpu.part", "precision", *QUICK]
    command += ["--out", str(tmp_path), "--seconds", "3600"]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    first = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert first.stdout
    with first.stdout as said:
        said.readline()  # the first measurement is written
        first.kill()
        first.wait()
    before = json.loads(path.read_text())
    assert not before["complete"]
    assert before["measurements"]

    again = part("precision", tmp_path)
    assert again.returncode == 0, again.stderr
    after = json.loads(path.read_text())
    assert after["complete"]
    assert after["measurements"].items() >= before["measurements"].items()
    assert [one["run"] for one in after["measurements"].values()] == sorted(
        one["run"] for one in after["measurements"].values()
    )
    assert len(after["runs"]) == 2

    unchanged = path.read_text()
    assert part("precision", tmp_path).returncode == 0
    assert path.read_text() == unchanged


def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    refused = kit("--out", tmp_path / "none")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("benchmarks.gpu: expected a ")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_the_parts_are_listed_without_a_gpu():
    listed = kit("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(PARTS)


def test_a_cpu_makes_no_evidence_by_default():
    refused = kit("--device", "cpu", "--quick")
    assert refused.returncode == 2
    assert "--out" in refused.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_what_a_part_has_started_ends_with_it(tmp_path):
    pid = tmp_path / "pid"
    (tmp_path / "endless.py").write_text(
        "import subprocess, sys\n"
        f"child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
    )
    assert in_process([sys.executable, str(tmp_path / "endless.py")], timeout_s=60) == 0
    while runs(pid.read_text()):  # until it has been told
        time.sleep(0.01)


def runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
