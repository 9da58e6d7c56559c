"""The reference of the changes is generated from their declarations; each is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from changes_docs import page

from stepscope.models.whatif import CHANGES

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/reference/changes.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python scripts/changes_docs.py > docs/reference/changes.md"


@pytest.mark.parametrize("name", CHANGES)
def test_a_declaration_is_complete(name: str) -> None:
    change = CHANGES[name]
    assert change.summary.endswith(".")
    assert all(parameter.meaning for parameter in change.parameters.values())
    assert change.basis or change.only_measured
    assert change.error or not change.error_source


@pytest.mark.parametrize("name", [name for name, one in CHANGES.items() if one.application])
def test_what_verify_applies_is_there_to_apply(name: str) -> None:
    application = CHANGES[name].application
    assert application is not None
    known = {*CHANGES[name].parameters}
    assert {*application.arguments, *application.defaults} <= known
    assert "workers" in application.defaults or not application.processes
