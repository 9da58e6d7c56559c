"""What strangers meet first: forms for issues, workflows, and what says how to cite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepscope.faces.terminal.commands import COMMANDS
from stepscope.version import __version__

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
pytestmark = pytest.mark.skipif(not GITHUB.exists(), reason="in the repository alone")
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
DOORS = [*GITHUB.rglob("*.yml"), *GITHUB.rglob("*.md"), ROOT / "SUPPORT.md"]


def loaded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def test_there_is_a_form_for_each_kind_of_mistake() -> None:
    assert [form.stem for form in FORMS] == ["cannot_open", "wrong_advice", "wrong_number"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_asks_for_what_is_needed(form: Path) -> None:
    content = loaded(form)
    fields = {part["id"]: part for part in content["body"] if "id" in part}
    assert {*content} == {"name", "description", "labels", "body"}
    assert [*fields] == ["what", "commands", "versions"]
    assert all(field["validations"]["required"] for field in fields.values())
    assert "stepscope redact" in content["body"][0]["attributes"]["value"]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_the_commands_exist(door: Path) -> None:
    named = re.findall(r"`(?:.* -m )?stepscope ([a-z]+)\b", door.read_text())
    assert {*named} - {*COMMANDS} == set()


def test_workflows_call_the_scripts_of_the_repository() -> None:
    steps = loaded(GITHUB / "workflows/test.yml")["jobs"]["unit"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands == ["./scripts/test -n 2 tests/unit src/stepscope --doctest-modules"]


def test_the_version_to_cite_is_this_one() -> None:
    assert loaded(ROOT / "CITATION.cff")["version"] == __version__
