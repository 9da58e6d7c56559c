"""The page on the architecture is true: its import order, its packages and its paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stepscope"
PAGE = (ROOT / "docs" / "design" / "architecture.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_import_order_is_the_one_that_is_checked() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    contract = project.split('type = "layers"')[1].split("\n]")[0]
    checked = [re.findall(r"stepscope\.(\w+)", line) for line in contract.splitlines()]
    drawn = section("Who may import whom").split("```")[1].strip().splitlines()
    assert [line.split(" · ") for line in drawn] == [names for names in checked if names]


def test_every_package_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\w+)/` \|", section("The packages"), re.MULTILINE))
    assert listed == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_package_has_a_place_in_the_import_order() -> None:
    drawn = section("Who may import whom").split("```")[1].split()
    others = {"record"}  # it meets the rest in a file
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - others <= set(drawn)


@pytest.mark.parametrize("name", re.findall(r"`(\w+[/.][\w/.]*)`", section("Where is …?")))
def test_places_exist(name: str) -> None:
    assert any((folder / name).exists() for folder in (PACKAGE, ROOT))
