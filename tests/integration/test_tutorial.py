"""docs/tutorial.md: every command runs as written and shows what the page says it shows.

They run in forks of a process that has PyTorch imported, which takes seconds for each.
"""

from __future__ import annotations

import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
from machine_calibration import calibrated
from warm_python import run_stepscope

ROOT = Path(__file__).parents[2]


def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / ".cache"))  # that of the tutorial
    calibrated()
    run_page = runpy.run_path(str(ROOT / "scripts" / "run_page.py"))["run_page"]
    run_page((ROOT / "docs" / "tutorial.md").read_text("utf-8"), tmp_path, in_fork)


def in_fork(
    command: str, folder: Path, environment: dict[str, str], stderr: int
) -> subprocess.CompletedProcess[str]:
    name, *words = shlex.split(command)
    assert name == "stepscope"
    done = run_stepscope(words, folder, environment)
    if stderr == subprocess.STDOUT:
        done.stdout += done.stderr
    return done


def test_a_command_that_does_not_show_what_it_must_is_an_error(tmp_path: Path) -> None:
    run_page = runpy.run_path(str(ROOT / "scripts" / "run_page.py"))["run_page"]
    page = "<!-- run: must=seven -->\n```console\n$ echo six\n```\n"
    with pytest.raises(AssertionError, match="'seven' is not in\nsix"):
        run_page(page, tmp_path)
