"""A package outside of the project adds a reader, a rule, a change and a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ENTRY_POINTS = """
[stepscope.readers]
toy = outside:READER
[stepscope.rules]
toy = outside:RULES
[stepscope.changes]
toy = outside:NO_LOGGING
broken = outside:MISSING
[stepscope.commands]
hello = outside:hello
"""
_PAGE = (Path(__file__).parents[2] / "docs/reference/extensions.md").read_text()
_CODE = _PAGE.partition("```python\n")[2].partition("```")[0]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an installed package, as pip would leave it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "outside.py").write_text(_CODE)
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(_ENTRY_POINTS)
    (folder / "trace.toy").write_text("TOY\naten::mm,0,90000\nlog to the console,100000,90000\n")
    return folder


def stepscope(outside: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(outside), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "stepscope", *arguments]
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_reader_from_outside_opens_its_files(outside: Path) -> None:
    rows = stepscope(outside, "query", str(outside / "trace.toy"), "select name from events", "--json")
    # The module has a rule, too, and is imported for the reader first.
    assert (rows.returncode, rows.stderr) == (0, "")
    assert "aten::mm" in rows.stdout


def test_a_rule_from_outside_reports(outside: Path) -> None:
    answer = stepscope(outside, "analyze", str(outside / "trace.toy"), "--json")
    assert answer.returncode == 0, answer.stderr
    assert "long_operator" in [finding["rule"] for finding in json.loads(answer.stdout)["findings"]]


def test_what_an_outside_package_changes_is_no_kept_answer(outside: Path, tmp_path: Path) -> None:
    """The same file again, after its reader and a rule have been edited."""
    edited = tmp_path / "edited"
    shutil.copytree(outside, edited)
    seen = []
    shorter = _CODE.replace("(times, np.int64)", "(times, np.int64) - [[0], [10_000]]")
    for code in (_CODE, shorter.replace("A product is long.", "Edited.")):
        (edited / "outside.py").write_text(code)
        answer = json.loads(stepscope(edited, "analyze", str(edited / "trace.toy"), "--json").stdout)
        (finding,) = (one for one in answer["findings"] if one["rule"] == "long_operator")
        seen.append((finding["what"], round(finding["evidence"][0]["ms"], 2)))
    assert seen == [("A product is long.", 0.09), ("Edited.", 0.08)]


def test_a_change_from_outside_is_listed_and_applied(outside: Path) -> None:
    assert "no_logging" in stepscope(outside, "whatif", "--list").stdout
    answer = stepscope(outside, "whatif", str(outside / "trace.toy"), "no_logging", "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["speedup"] > 1


def test_what_cannot_be_imported_costs_one_line(outside: Path) -> None:
    listed = stepscope(outside, "whatif", "--list")
    assert listed.returncode == 0
    assert [line for line in listed.stderr.splitlines() if "MISSING" in line]


def test_a_command_from_outside_is_in_the_help_and_runs(outside: Path) -> None:
    assert "hello" in stepscope(outside, "--help").stdout
    assert stepscope(outside, "hello").stdout == "hello from outside\n"
