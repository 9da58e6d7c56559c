"""The marker `step_time` and its fixtures, in test files as people write them."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import stepscope
from stepscope.faces import pytest_plugin
from stepscope.models.diff.significance import Decision

TESTS = """
import pytest
from stepscope.faces import pytest_plugin

class Clock:
    now, factor = 0.0, 0
    def __call__(self): return self.now

clock = Clock()

def step_of(seconds):
    def step():
        Clock.factor = (Clock.factor + 1) % 7
        Clock.now += seconds * (1 + 0.002 * Clock.factor)
    return step

@pytest.fixture(autouse=True)
def steady(monkeypatch, request):
    monkeypatch.setattr(pytest_plugin, "_clock", clock)
    load = 64.0 if "busy" in request.node.name else 0.0
    monkeypatch.setattr(pytest_plugin, "_load", lambda: (load,))
    monkeypatch.setattr(pytest_plugin.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(pytest_plugin, "_evidence", lambda trace: "recorded: forward 71% of the step")
    monkeypatch.setattr(pytest_plugin, "_record", lambda *what: None)

@pytest.mark.step_time(budget=0.2)
def test_within(time_steps):
    time_steps(step_of(0.15))

@pytest.mark.step_time(budget=0.1)
def test_above(time_steps):
    time_steps(step_of(0.15))

@pytest.mark.step_time(budget=0.1)
def test_above_while_busy(time_steps):
    time_steps(step_of(0.15))

@pytest.mark.step_time(limit=2)
def test_as_the_base(time_steps):
    time_steps(step_of(0.1), base=step_of(0.1))

@pytest.mark.step_time(limit=2)
def test_slower_than_the_base(time_steps):
    time_steps(step_of(0.11), base=step_of(0.1))

@pytest.mark.step_time(limit=2, pairs=4)
def test_of_too_few_pairs(time_steps):
    time_steps(step_of(0.11), base=step_of(0.1))

def test_without_either(time_steps):
    time_steps(step_of(0.1))

@pytest.mark.step_time(0.2)
def test_by_place(time_steps):
    time_steps(step_of(0.15))

NONE = [{"budget": float("nan")}, {"budget": 0}, {"budget": "x"}, {"budget": float("inf")}, {"budgt": 1}]
NONE += [{"limit": float("nan")}, {"limit": "2"}, {"pairs": 0}, {"pairs": -3}, {"pairs": None}]

@pytest.mark.parametrize("given", [pytest.param(each, marks=pytest.mark.step_time(**each)) for each in NONE])
def test_of_no_number(time_steps, given):
    time_steps(step_of(0.1), base=step_of(0.1))
"""
JOB = Path(__file__).parents[2] / "fuzz/corpus/commands/job.json"
OUTCOMES = """
test_within PASSED
test_above FAILED
test_above_while_busy SKIPPED
test_as_the_base PASSED
test_slower_than_the_base FAILED
test_of_too_few_pairs SKIPPED
test_without_either FAILED
test_by_place PASSED
"""


def run_tests(folder: Path, text: str) -> str:
    (folder / "test_steps.py").write_text(text)
    # By its module: the entry point exists only where stepscope is installed.
    plugins = ["-p", "no:stepscope", "-p", "stepscope.faces.pytest_plugin", "-p", "no:cacheprovider"]
    words = [sys.executable, "-m", "pytest", "-v", "-rs", "--strict-markers", *plugins, "test_steps.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True).stdout


@pytest.mark.main
def test_a_budget_or_a_base_decides(tmp_path: Path) -> None:
    said = run_tests(tmp_path, TESTS)
    assert re.findall(r"::(\w+ [A-Z]+)", said)[:8] == OUTCOMES.split("\n")[1:-1]
    assert "the step takes 151.1 ms, +51.0 % against the budget 100.0 ms (+49.6 to +52.4 %, 5 pairs)" in said
    assert "recorded: forward 71% of the step" in said
    assert "but 64.0 threads run on 2 CPUs; compare with a base step" in said
    assert (
        said.count("\nstep_time takes numbers, at least {'budget': 1e-09, 'limit': 0.0, 'pairs': 1}; found ")
        == 10
    )
    assert "time_steps needs a budget in its marker, or a base step to compare with" in said


JAX_TEST = """
import jax, jax.numpy as jnp

update = jax.jit(lambda w, x: w - 1e-3 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
w, x = jnp.ones((64, 64)), jnp.ones((8, 64))

def test_steps_are_recorded(record_steps):
    trace = record_steps(lambda: update(w, x), steps=3)
    assert len(trace["steps"]) == 3
"""


@pytest.mark.main
def test_a_function_of_jax_that_takes_nothing_back_is_recorded(tmp_path: Path) -> None:
    assert "1 passed" in run_tests(tmp_path, JAX_TEST)


def sudden(chance: random.Random, _: float) -> float:
    """A tenth of the steps take up to 15 % longer."""
    return chance.gauss(1, 0.02) + 0.15 * chance.random() * (chance.random() < 0.1)


def drifting(chance: random.Random, now: float) -> float:
    """The speed of the core changes by up to a third, twice a second."""
    return chance.gauss(1, 0.02) + random.Random(int(2 * now)).random() / 3


@pytest.mark.parametrize("noise", [sudden, drifting])
@pytest.mark.parametrize(("more", "told"), [(0.0, "not slower"), (0.1, "slower")])
def test_noise_hides_no_change_and_makes_none(monkeypatch, noise, more: float, told: str) -> None:
    chance, now = random.Random(47), [0.0]
    monkeypatch.setattr(pytest_plugin, "_clock", lambda: now[0])

    def step_of(seconds: float):
        def step() -> None:
            now[0] += seconds * noise(chance, now[0])

        return step

    verdicts = set()
    for _ in range(20):
        decision, _, _ = pytest_plugin._measure(step_of(0.006 * (1 + more)), step_of(0.006), None, 2.0, 30)
        verdicts.add(decision.verdict)
    assert verdicts == {told}


@pytest.mark.parametrize(
    ("more", "told"), [(0.0, "not slower"), (0.015, "cannot tell"), (0.025, "cannot tell"), (0.04, "slower")]
)
def test_a_difference_as_between_equal_steps_decides_nothing(monkeypatch, more: float, told: str) -> None:
    now = [0.0]
    monkeypatch.setattr(pytest_plugin, "_clock", lambda: now[0])

    def step_of(seconds: float):
        def step() -> None:
            now[0] += seconds

        return step

    decision, _, pairs = pytest_plugin._measure(step_of(0.006 * (1 + more)), step_of(0.006), None, 2.0, 8)
    assert (decision.verdict, pairs) == (told, 8 if told == "cannot tell" else 5)


def test_a_line_names_its_interval() -> None:
    line = pytest_plugin._line(Decision("slower", 14.7, 12.0, 17.4), 0.172, 8, 0.15)
    assert line == "the step takes 172.0 ms, +14.7 % against the budget 150.0 ms (+12.0 to +17.4 %, 8 pairs)"


def test_the_evidence_names_the_longest_stages_and_the_file() -> None:
    said = pytest_plugin._evidence(stepscope.open(JOB))
    assert re.fullmatch(
        r"recorded: \w+ \d+% of the step(, \w+ \d+% of the step)*; stepscope view .*job.json", said
    )


@pytest.mark.parametrize("device", ["cuda", "xpu", "hpu", "npu", "mps"])
def test_a_step_ends_when_its_device_has(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch has begun on a device, of whatever vendor, is waited for, and no other begins."""
    waited: list[str] = []
    torch = SimpleNamespace(
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: device == "mps")),
        **{
            name: SimpleNamespace(
                is_initialized=partial(device.__eq__, name), synchronize=partial(waited.append, name)
            )
            for name in ("cuda", "xpu", "hpu", "npu", "mps")
        },
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    pytest_plugin._wait(None)
    assert waited == [device]
