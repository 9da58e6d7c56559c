"""An unforeseen error is one line and a crash report; a script's own errors are left alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stepscope.faces.terminal import commands, crash_report
from stepscope.faces.terminal.commands import stepscope


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any command fails as by a mistake of ours."""

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1)
    def broken(words: tuple[str, ...]) -> None:
        secret = {"kernel": "secret_value"}
        raise KeyError(secret["kernel"])

    monkeypatch.setattr(commands.Commands, "get_command", lambda self, ctx, name: broken)
    monkeypatch.setattr(crash_report.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["stepscope", "report", "my trace.json"])


def call(*words: str) -> Any:
    return CliRunner().invoke(stepscope, [*words])


def test_one_line_and_a_file(crash: None, tmp_path: Path) -> None:
    result = call("report", "my trace.json")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    (file,) = tmp_path.iterdir()
    assert str(file) in result.output
    text = file.read_text()
    assert re.match(r"stepscope \d.*, Python 3\.\d", text)
    assert "command: stepscope report 'my trace.json'" in text
    assert re.search(r'KeyError, raised at:\n(.*\n)*  File ".*test_crash_report.py"', text)
    assert "'secret_value'" not in text


def test_a_full_disk_is_one_line_too(crash: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crash_report.tempfile, "tempdir", str(tmp_path / "absent"))
    result = call("report", "x")
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert "no crash report" in result.output


def test_the_error_of_a_recorded_script_is_its_own(crash: None, tmp_path: Path) -> None:
    result = call("run", "train.py")
    assert isinstance(result.exception, KeyError)
    assert not [*tmp_path.iterdir()]
