"""That the benchmarks still run; what they measure is nobody's test."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import warm_python
from machine_calibration import calibrated

import stepscope

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KEPT_MEMORY = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def run(script: str, *arguments: str | Path, **environment: str) -> str:
    command = [sys.executable, BENCHMARKS / script, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_warm(script: str, *arguments: str | Path, **environment: str) -> str:
    """The same where PyTorch is imported, also for the processes that the benchmark starts."""
    command = [sys.executable, BENCHMARKS / script, *arguments]
    done = warm_python.run_warm(command, Path.cwd(), 300, {**os.environ, **environment}, children_forked=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated") / "trace.json"
    run("big_trace.py", "1e4", path)
    return path


def test_a_generated_snapshot_is_read_whole():
    found = run("memory_snapshot.py", "--events", "6000", "--rounds", "1")
    assert "7,600 events" in found
    assert "times as long as pickle.load alone" in found


def test_generated_traces_are_the_same_each_time_and_differ_by_seed(generated, tmp_path):
    run("big_trace.py", "1e4", tmp_path / "again.json")
    run("big_trace.py", "1e4", tmp_path / "other.json", "--seed", "1")
    first, again, other = (
        hashlib.sha256(path.read_bytes()).digest()
        for path in (generated, tmp_path / "again.json", tmp_path / "other.json")
    )
    assert first == again != other


def test_a_generated_trace_is_a_training_run_with_nothing_unlinked(generated):
    trace = stepscope.open(generated, cache=False)
    assert abs(len(trace.events) - 10_000) < 200
    assert len(trace["steps"]) == 6
    assert len(trace["warnings"]) == 0
    stages = {row["stage"] for row in trace["stages"].rows()}
    assert stages >= {"data_loading", "transfer", "forward", "backward", "optimizer"}
    work = trace.events.text("category").mask("kernel", "memcpy")
    assert len(trace["launches"]) == work.sum()
    backward = trace.events["forward_thread"] > 0
    assert (trace.events["forward_event"][backward] >= 0).all()


def test_ingest_reads_a_small_trace_with_every_tool_at_hand(traces, tmp_path):
    out = tmp_path / "results.json"
    said = run("ingest.py", "--quick", "--out", out, STEPSCOPE_TRACES=str(traces))
    results = json.loads(out.read_text())
    assert set(results["files"]) == {"critical_path_a100/simple_add.json.gz", "generated.json"}
    for file in results["files"].values():
        assert file["summary"]["stepscope"]["peak_bytes"] > 0
        assert file["summary"]["json"]["rows"] >= file["summary"]["stepscope"]["rows"] > 0
    assert set(results["commands"]) == {"import stepscope", "stepscope --help", "reopen", "report"}
    assert not any(one["status"] for ones in results["commands"].values() for one in ones)
    assert "fails" not in said


def test_memory_of_growing_traces_is_measured():
    said = run("memory_by_size.py", "--gigabytes", "0.003", "0.006")
    *_, first, second = said.splitlines()
    assert first.startswith("| 3 MB | 10,")
    assert second.startswith("| 6 MB | 21,")


def test_commands_are_timed_on_growing_traces():
    said = run("scaling.py", "--slices", "1e3", "1e4", "--command", "open")
    assert "| open | " in said
    assert "slope to 10,000" in said


def test_a_profile_of_xla_is_read():
    said = run("xla_profile.py", "1")
    assert "ours " in said
    assert "MiB at its peak" in said


def test_levels_of_the_timeline_are_timed(generated):
    said = run("timeline.py", generated, "--levels", "20")
    assert "20 levels, ms: " in said


def test_whatif_accuracy_compares_a_change_with_its_prediction(tmp_path):
    calibrated()
    out = tmp_path / "results.json"
    small = ("--part", "dataloader", "--warmup=1", "--steps=1", "--rounds=1", "--batch=2")
    said = run("whatif_accuracy.py", *small, "--out", out)
    (facts,) = json.loads(out.read_text())
    assert facts["applied"] == {"dataloader": {"count": 1, "workers": 2}}
    assert f"| {facts['error']:+.1%} |" in said


def test_a_slow_example_is_compared_with_itself_fixed(tmp_path):
    out = tmp_path / "times.json"
    small = ("--rounds", "1", "--steps", "3", "kernel_fusion")
    said = run_warm("slow_examples.py", *small, "--out", out)
    ((slow, fixed),) = json.loads(out.read_text())["times"]["kernel_fusion"]
    assert slow > 0
    assert fixed > 0
    assert "| kernel_fusion |" in said


def test_layers_changed_in_a_model_are_compared_with_their_prediction(tmp_path):
    out = tmp_path / "results.json"
    kept = dict.fromkeys(KEPT_MEMORY, "0")  # else it starts again
    small = ("--rounds", "1", "--quick", "--model", "GNMT")
    said = run_warm("whatif_layers.py", *small, "--out", out, **kept)
    rows = [line for line in said.splitlines() if line.startswith("| GNMT |")]
    assert [row.split("`")[1].split(":")[0] for row in rows] == ["checkpoint", "metaflow"]
    assert run_warm("whatif_layers.py", "--table", out, **kept) == said


def test_messages_cost_cpu_time():
    said = run_warm("message_cost.py", "--messages", "5")
    least, most = re.fullmatch(r"(\d+) to (\d+) us a message .*\n", said).groups()
    assert 0 < int(least) <= int(most)


def test_checkpointing_costs_more_the_more_is_saved():
    said = run_warm("checkpoint_cost.py", "--steps", "30").splitlines()[-1]
    call, each = re.fullmatch(r"(\d+) us a call, ([\d.]+) us a saved tensor", said).groups()
    assert float(call) > float(each) > 0


def test_watching_is_compared_with_plain_training():
    said = run_warm("watch_cost.py", "--ms", "2", "--pairs", "3")
    ms, ratio = re.match(r"([\d.]+) ms a step: watched over plain ([\d.]+) \(", said).groups()
    assert float(ms) > 0
    assert float(ratio) > 0


@pytest.mark.full
def test_planted_slowness_is_looked_for():
    said = run_warm("watched_slowness.py", "garbage collection").splitlines()
    assert said[-1] in ("0 of 1 right", "1 of 1 right")


def test_the_answers_of_the_pane_are_timed(generated):
    said = run("whatif_pane.py", generated)
    assert "every change tried in" in said
    assert "  dataloader" in said


def test_the_cost_of_contexts_runs_small(tmp_path):
    out = tmp_path / "contexts.json"
    small = ["--only", "time", "--size", "tiny", "--model", "ResNet", "--rounds", "2"]
    small += ["--steps", "1", "--usual-heap"]  # with another heap it starts again
    printed = run_warm("contexts.py", *small, "--out", out)
    assert "--contexts --native" in printed
    found = json.loads(out.read_text())
    assert found["ResNet, tiny"]["--contexts"]["step_ms"] > 0


def test_batch_sizes_are_predicted_and_compared():
    table = run_warm("batch_accuracy.py", "--model", "gnmt", "--quick", OMP_NUM_THREADS="1")
    assert "| gnmt | 2 | 8 |" in table
    assert "| all |" in table


def test_the_answers_of_the_page_are_timed(tmp_path):
    out = tmp_path / "answers.json"
    said = run("answers.py", "--slices", "1e4", "--drills", "2", "--out", out)
    answers = json.loads(out.read_text())["answers"]
    assert set(answers) == {"overview", "modules", "kernels", "sources", "search", "level", "details"}
    assert answers["level"]["count"] == answers["details"]["count"] > 2
    assert "10,000 slices: ready after" in said


def test_saves_are_followed_by_hints():
    told = run("save_to_hints.py", "--saves", "1")
    assert re.search(r"save 1: [\d.]+ s, [1-9]\d* hints", told), told
    assert "a save while another is being measured" in told


def test_advice_is_followed_by_its_own_patch():
    said = run_warm("advice.py", "--rounds", "1", "optimizer-adamw-loop")
    assert re.search(r"optimizer-adamw-loop .* stated 0% to [1-9]\d*%, saved -?\d+%", said)
    assert "| `optimizer_loop` | 1 | 1 | " in said


def test_each_script_with_a_defect_can_be_fixed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from advice_cases import CASES

    assert len({case.name for case in CASES}) == len(CASES) >= 30
    for case in CASES:
        compile(case.script, case.name, "exec")
        assert case.script.count(case.before) == 1 or not case.before, case.name


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the tests have JAX from Python 3.11 on")
def test_contexts_of_jax_are_compared_with_no_tool():
    if not find_spec("jax"):
        pytest.skip("needs jax")
    small = ("--only", "time", "--rounds", "2", "--steps", "2", "--batch", "2")
    found = run("contexts_jax.py", *small)
    assert re.search(r"--contexts +\d+\.\d\d +\d\.\d{3} \(", found)
    assert "over 400 iterations" in run("contexts_jax.py", "--only", "memory", "--iterations", "400")


@pytest.mark.skipif(find_spec("optax") is None, reason="its scripts use optax")
def test_stages_of_a_plain_jax_script_are_compared_with_its_timers():
    said = run("jax_scripts.py", "--rounds", "1", "--only", "plain_transformer")
    assert "| plain_transformer | 100.0% |" in said


def test_a_loop_that_saves_every_n_th_step_is_compared_with_its_timers():
    said = run("rare_loops.py", "--seed", "4", "--loops", "1")
    assert re.search(r"4 torch checkpointing every 4, backward +\d+\.\d\d ms", said)
    assert re.search(r"\d of \d parts hold", said)


def test_assistants_reach_planted_causes_in_few_calls_and_bytes():
    pytest.importorskip("mcp.server.mcpserver", reason="the extra mcp is not installed")
    command = [sys.executable, "-m", "assistants", "--seeds", "1"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"stepscope mcp +(9|10) of 10 ", done.stdout), done.stdout
    assert re.search(r"SQL over the JSON +\d+ of 10 ", done.stdout), done.stdout
