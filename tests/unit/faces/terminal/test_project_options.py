"""Options of a project, from its TOML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stepscope.errors import StepscopeError
from stepscope.faces.terminal.commands import project_options, stepscope

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")


@click.command("run")
@click.option("-n", "--steps", "count", type=int, default=3)
@click.option("--shapes/--no-shapes", default=True)
@click.option("-o", "--output")
@click.option("--format", "form", type=click.Choice(["table", "json"]))
@click.option("--json", "form", flag_value="json")
def run() -> None:
    """Stands for a command."""


@pytest.mark.parametrize(
    ("file", "text", "options"),
    [
        ("stepscope.toml", "[run]\nsteps = 5\nshapes = false", {"count": 5, "shapes": False}),
        ("pyproject.toml", "[tool.stepscope.run]\nsteps = 5", {"count": 5}),
        ("stepscope.toml", "[run]\nno-shapes = true", {"shapes": False}),
        ("stepscope.toml", "[run]\nno-shapes = false", {"shapes": True}),
        ("stepscope.toml", "[run]\njson = true", {"form": "json"}),
        ("stepscope.toml", "[run]\njson = false", {}),
        ("pyproject.toml", "[tool.other]\nsteps = 5", {}),
        ("pyproject.toml", "no TOML at all, and no section of ours", {}),
        ("stepscope.toml", "[report]\nsteps = 5", {}),
        ("stepscope.toml", "run = 5", {}),
        ("pyproject.toml", "[tool]\nstepscope = 5 # tool.stepscope", {}),
        ("pyproject.toml", "tool = [1] # tool.stepscope", {}),
    ],
)
def test_options(tmp_path: Path, file: str, text: str, options: dict[str, object]) -> None:
    (tmp_path / file).write_text(text)
    (tmp_path / "inner").mkdir()
    assert project_options(run, tmp_path / "inner") == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run", "is not TOML: "),
        ("[run]\nsteps = " + "[" * 30_000, "is not TOML: "),
        ("a" + ".a" * 50_000 + " = 1", "has over 32,768 letters; give"),
        ("[run]\nsteps = " + "9" * 5000, "is not TOML: "),
        ("[run]\nstepz = 5", "stepscope run has no option --stepz; did you mean steps"),
        ("[runn]\nsteps = 5", r"no command runn has options here; did you mean run\?"),
        ("steps = 5", "no command steps has options here; choose one of run, report"),
        ("[run]\nsteps = -inf", "--steps can only be set on the command line"),
        ("[run]\noutput = 'a'", "--output can only be set on the command line"),
    ],
)
def test_what_cannot_be_followed_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "stepscope.toml").write_text(text)
    with pytest.raises(StepscopeError, match=message):
        project_options(run, tmp_path)


def test_options_far_down_in_a_long_pyproject_are_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "# others' options\n" * 2_000 + "[tool.stepscope.run]\nsteps = 5"
    )
    with pytest.raises(StepscopeError, match="has over 32,768 letters"):
        project_options(run, tmp_path)


def test_the_command_line_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Path(__file__).parents[3] / "fuzz/corpus/commands/job.json"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stepscope.toml").write_text("[report]\njson = true")
    assert CliRunner().invoke(stepscope, ["report", str(job)]).stdout.startswith("{")
    (tmp_path / "stepscope.toml").write_text("[report]\njson = 'yes'")
    refused = CliRunner().invoke(stepscope, ["report", str(job)])
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1


def test_a_folder_around_that_others_may_not_enter_has_no_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = os.stat

    def refuse(path: str | Path, **options: Any) -> os.stat_result:
        if Path(path).parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return state(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert project_options(run, tmp_path / "inner") == {}
