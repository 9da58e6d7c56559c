"""The action that compares step times: what its intervals decide, and its steps as GitHub runs them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import stepscope
from stepscope.models.diff.significance import decide

ACTION = Path(__file__).parents[2] / "action"
pytestmark = pytest.mark.skipif(not ACTION.exists(), reason="the action is in the repository alone")


def noisy(chance: random.Random, ms: float, spread: float) -> float:
    """A run's median step on a busy machine; one run in ten takes longer by up to seven spreads."""
    return ms * chance.gauss(1, spread) * (1 + (chance.random() < 0.1) * chance.random() * 7 * spread)


def outcome(chance: random.Random, more: float, spread: float) -> str:
    pairs: list[tuple[float, float]] = []
    verdict = "cannot tell"
    while verdict == "cannot tell" and len(pairs) < 20:
        pairs.append((noisy(chance, 100, spread), noisy(chance, 100 * (1 + more), spread)))
        verdict = decide(pairs, 2.0).verdict
    return verdict


@pytest.mark.parametrize(
    ("more", "spread", "wrong", "least"),
    [
        (0.0, 0.02, "slower", {}),
        (0.03, 0.02, "not slower", {}),  # 2 % are accepted: `cannot tell` is right, too
        (0.10, 0.02, "not slower", {"slower": 95}),
        (0.0, 0.005, "slower", {"not slower": 95}),
        (0.03, 0.005, "not slower", {"slower": 60}),
    ],
)
def test_noise_decides_nothing(more: float, spread: float, wrong: str, least: dict[str, int]) -> None:
    chance = random.Random(50)
    found = Counter(outcome(chance, more, spread) for _ in range(100))
    assert found[wrong] <= 1  # the interval is of 99.5 %
    assert all(found[verdict] >= count for verdict, count in least.items()), found


def test_too_few_pairs_decide_nothing() -> None:
    assert decide([(100.0, 200.0)] * 4, 2.0).verdict == "cannot tell"
    assert decide([(100.0, 200.0)] * 5, 2.0).verdict == "slower"


# -- its steps

PACKAGE = f"__path__.append({str(Path(stepscope.__file__).parent)!r})"
COMMANDS = '''
"""Stands for stepscope: the time of a step is what the script says, as no clock is steady."""
import sys
from pathlib import Path
from stepscope.base import watch_format
from stepscope.record.watch.watch_file import WatchFile

if sys.argv[1] == "report":
    Path("page.html").write_text(" ".join(sys.argv[1:]))
    sys.exit()
out, script = sys.argv[sys.argv.index("-o") + 1 :][:2]
if sys.argv[1] == "run":
    Path(out).write_text("a capture")
    sys.exit()
count = Path(out).with_suffix(".count")
number = int(count.read_text()) + 1 if count.exists() else 0
count.write_text(str(number))
ns = int(1e6 * float(Path(script).read_text()) * (1 + 0.002 * ((number + ("head" in out)) % 3)))
file = WatchFile(Path(out))
for step in range(20):  # the first five compile
    file.add_step((step, 0, ns * (9 if step < 5 else 1), *(0.0 for _ in watch_format.TIMES)))
file.put_text({"created_unix_ns": 1, "begun_unix_ns": 1, "places": []})
file.flush()
'''


def _git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(
        ["git", *names, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def run_action(tmp_path: Path, base_ms: float, head_ms: float) -> tuple[list[int], Path, str]:
    """The exit codes of the action's steps in a repository of two commits, its files and outputs."""
    project, temporary, fake = (tmp_path / name for name in ("project", "temp", "fake"))
    for folder in (project, temporary, fake):
        folder.mkdir()
    (fake / "stepscope").mkdir()
    (fake / "stepscope/__init__.py").write_text(PACKAGE)
    (fake / "stepscope/__main__.py").write_text(COMMANDS)
    (fake / "bin").mkdir()
    (fake / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (fake / "bin/python").chmod(0o755)
    _git(project, "init", "-q")
    for ms in (base_ms, head_ms):
        (project / "train.py").write_text(str(ms))
        _git(project, "add", ".")
        _git(project, "commit", "--allow-empty", "-qm", "step")
    environment = {
        **os.environ,
        "PATH": f"{fake / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(fake),
        "RUNNER_TEMP": str(temporary),
        "GITHUB_OUTPUT": str(temporary / "output"),
        "GITHUB_STEP_SUMMARY": str(temporary / "summary"),
    }
    inputs = {"inputs.script": "train.py --epochs 1", "inputs.limit": "2", "inputs.pairs": "8"}
    inputs |= {"inputs.base": _git(project, "rev-parse", "HEAD~1"), "github.action_path": str(ACTION)}
    codes = []
    for step in yaml.safe_load((ACTION / "action.yml").read_text())["runs"]["steps"]:
        if "run" in step:
            values = {name: inputs[value[4:-3]] for name, value in step.get("env", {}).items()}
            command = ["bash", "-eo", "pipefail", "-c", step["run"]]
            codes.append(subprocess.run(command, cwd=project, env={**environment, **values}).returncode)
    return codes, temporary, (temporary / "output").read_text()


@pytest.mark.main
@pytest.mark.skipif(not (shutil.which("git") and shutil.which("bash")), reason="needs git and bash")
@pytest.mark.parametrize(
    ("head_ms", "verdict", "codes"),
    [
        (100.0, "not slower", [0, 0, 0]),
        (101.0, "cannot tell", [0, 0, 0]),  # may be 2.3 % more work, whose data lie better
        (110.0, "slower", [0, 1, 0]),
        (102.0, "cannot tell", [0, 0, 0]),
    ],
)
def test_the_steps_of_the_action(head_ms: float, verdict: str, codes: list[int], tmp_path: Path) -> None:
    found, temporary, output = run_action(tmp_path, 100.0, head_ms)
    assert found == codes
    assert output == f"verdict={verdict}\n"
    summary = json.loads((temporary / "stepscope-steps/steps.json").read_text())
    assert len(summary["head_ms"]) == (8 if verdict == "cannot tell" else 5)
    assert "| head |" in (temporary / "summary").read_text()
    assert all((temporary / f"stepscope-steps/{name}.stepscope").exists() for name in ("base", "head"))
    assert (temporary / "stepscope-steps/page.html").read_text() == (
        "report head.stepscope --html page.html --compare base.stepscope"
    )
