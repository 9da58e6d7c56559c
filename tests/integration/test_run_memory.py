"""`stepscope run --memory`: what the capture holds, what it says, and what it predicts."""

from __future__ import annotations

import json
from pathlib import Path

import memory_scripts
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.models.memory import MemoryFacts, memory_facts
from stepscope.models.memory.memory_findings import find_problems
from stepscope.models.memory.recorded_memory import recorded_memory
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.prediction import predict_memory

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of captures, and what the runs printed on stderr."""
    folder = tmp_path_factory.mktemp("memory")
    return folder, memory_scripts.record_all(folder)


@pytest.fixture
def folder(recorded: tuple[Path, str]) -> Path:
    return recorded[0]


def facts_of(folder: Path, name: str) -> MemoryFacts:
    return memory_facts(stepscope.open(folder / f"{name}.stepscope", cache=False))[0]


def measured_peak(folder: Path, name: str) -> int:
    """The greatest total that torch's own table of allocations had in the recorded steps."""
    trace = stepscope.open(folder / f"{name}.stepscope", cache=False)
    return int(trace["memory"]["allocated_bytes"].max())


def place_of(folder: Path, name: str, mark: str = "# here") -> str:
    path = folder / f"{name}.py"
    lines = path.read_text().splitlines()
    return f"{path}:{next(n for n, line in enumerate(lines, 1) if mark in line)}"


def test_the_peak_is_that_of_the_allocator_and_its_parts_add_up(folder: Path) -> None:
    facts = facts_of(folder, "plain")
    assert facts.peak_bytes == measured_peak(folder, "plain")
    for shares in (facts.kinds, facts.stages):
        assert sum(share.bytes for share in shares) == facts.peak_bytes
    held = {share.name: share.bytes for share in facts.kinds}
    weights = 3 * (2 * 64 + 64 * 256 + 256 + 256 * 64 + 64) + 64 * 10 + 10
    assert held["weights"] == 4 * weights
    assert held["optimizer state"] == 2 * 4 * weights + 4 * 3 * 6 + 4 * 2  # a count for each
    assert facts.unassigned_bytes < 64  # the loss of the step before
    modules = {share.name: share.bytes for share in facts.modules}
    assert modules["blocks.0.wide"] == modules["blocks.1.wide"] == modules["blocks.2.wide"]


@pytest.mark.parametrize(
    ("name", "change"), [("checkpointed", "checkpoint:module=blocks.1"), ("stateless", "stateless_optimizer")]
)
def test_a_predicted_peak_is_the_measured_one(folder: Path, name: str, change: str) -> None:
    memory = recorded_memory(stepscope.open(folder / "plain.stepscope", cache=False))
    predicted = predict_memory(memory, [parse_request(change, CHANGES)]).predicted_bytes
    assert predicted == pytest.approx(measured_peak(folder, name), rel=0.001)


@pytest.mark.parametrize("name", [*memory_scripts.PLANTED, "one_large_tensor"])
def test_a_planted_problem_is_named_with_its_line(folder: Path, name: str) -> None:
    findings = find_problems(facts_of(folder, name))
    assert [(one.rule, one.place) for one in findings] == [(name, place_of(folder, name))]


def test_optimizer_state_is_named_with_the_line_of_the_step(folder: Path) -> None:
    findings = find_problems(facts_of(folder, "optimizer_state"))
    place = place_of(folder, "optimizer_state", "optimizer.step()")
    assert [(one.rule, one.place) for one in findings] == [("optimizer_state", place)]


@pytest.mark.parametrize("name", ["healthy", "plain"])
def test_a_healthy_script_has_no_finding(folder: Path, name: str) -> None:
    assert find_problems(facts_of(folder, name)) == []


def test_the_verdict_on_out_of_memory_comes_before_the_traceback(recorded: tuple[Path, str]) -> None:
    folder, stderr = recorded
    place = place_of(folder, "out_of_memory")
    said = stderr.index(f"stepscope: out of memory on cpu: 16.00 PiB were requested at {place}")
    assert said < stderr.index("DefaultCPUAllocator: can't allocate memory")
    capture = str(folder / "out_of_memory.stepscope")
    shown = CliRunner().invoke(stepscope_command, ["memory", capture])
    assert "Out of memory: " in shown.stdout
    assert "out_of_memory.py:" in shown.stdout


def test_fits_lists_changes_whose_peak_fits(folder: Path) -> None:
    capture = str(folder / "plain.stepscope")
    peak = measured_peak(folder, "plain")
    limit = f"{peak * 0.8 / 1e6:.3f}MB"
    found = CliRunner().invoke(stepscope_command, ["whatif", capture, "--fits", limit, "--json"])
    fits = json.loads(found.stdout)["fits"]
    assert fits
    assert all(fit["memory"]["predicted_bytes"] <= 0.8 * peak for fit in fits)
    costs = [fit["cost"] for fit in fits if fit["cost"] is not None]
    assert costs == sorted(costs)
    answer = CliRunner().invoke(stepscope_command, ["whatif", capture, "--best", "--fits", limit, "--json"])
    best = json.loads(answer.stdout)
    assert best["prediction"]["memory"]["predicted_bytes"] <= 0.8 * peak
    assert best["same_samples_ms"] <= best["prediction"]["replayed_step_ms"] * (1 + min(costs)) * 1.001
    roomy = CliRunner().invoke(stepscope_command, ["whatif", capture, "--fits", "1GB"])
    assert "fits into 1.0 GB as it is" in roomy.stdout
