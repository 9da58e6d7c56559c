"""What describes the package in several places says the same in each."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from stepscope.version import __version__

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "packaging" / "meta.yaml").read_text()
CONDA_NAMES = {"duckdb": "python-duckdb"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")
def test_the_conda_recipe_requires_what_the_project_requires() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pairs = (re.fullmatch(r"([\w-]+)(>=[\w.]+)", line) for line in project["dependencies"])
    wanted = {CONDA_NAMES.get(pair[1], pair[1]) + " " + pair[2] for pair in pairs if pair}
    wanted.add("python " + project["requires-python"])
    run = RECIPE.partition("  run:\n")[2].partition("\n\n")[0]
    assert {line.strip("- ") for line in run.splitlines()} == wanted
    assert len(wanted) == len(project["dependencies"]) + 1


def test_the_conda_recipe_is_of_this_version() -> None:
    assert f'{{% set version = "{__version__}" %}}' in RECIPE


def test_the_entry_of_the_mcp_registry_is_of_this_version_and_claims_the_package() -> None:
    entry = json.loads((ROOT / "server.json").read_text())
    (package,) = entry["packages"]
    assert entry["version"] == package["version"] == __version__
    assert f"mcp-name: {entry['name']}" in (ROOT / "README.md").read_text()  # PyPI shows it
    assert len(entry["description"]) <= 100
    (needed,) = package["runtimeArguments"]
    assert f'mcp = ["{needed["value"]}"]' in (ROOT / "pyproject.toml").read_text()
