"""docs/tutorial.md: every command runs as written and shows what the page says it shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from machine_calibration import calibrated

ROOT = Path(__file__).parents[2]


def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / ".cache"))  # that of the tutorial
    calibrated()
    tutorial = runpy.run_path(str(ROOT / "scripts" / "run_tutorial.py"))
    tutorial["run_tutorial"](tutorial["PAGE"].read_text("utf-8"), tmp_path)


def test_a_command_that_does_not_show_what_it_must_is_an_error(tmp_path: Path) -> None:
    tutorial = runpy.run_path(str(ROOT / "scripts" / "run_tutorial.py"))
    page = "<!-- run: must=seven -->\n```console\n$ echo six\n```\n"
    with pytest.raises(AssertionError, match="'seven' is not in\nsix"):
        tutorial["run_tutorial"](page, tmp_path)
