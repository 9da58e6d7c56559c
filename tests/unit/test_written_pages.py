"""The pages outside the documentation site, whose links its strict build does not check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md"])
def test_links_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
    files = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in files if not (ROOT / link).exists()] == []


def test_claims_of_robustness_name_tests_that_exist() -> None:
    text = (ROOT / "docs" / "evidence" / "robustness.md").read_text()
    named = set(re.findall(r"\b(?:unit|integration|fuzz)/[\w/]+|\btest_\w+\.py", text))
    tests = [path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("*")]
    assert len(named) > 30
    assert [name for name in named if not any(name in path for path in tests)] == []


def test_what_assistants_are_pointed_to_is_there() -> None:
    docs = ROOT / "docs"
    links = re.findall(r"\]\(([^)]+)/\)", (docs / "llms.txt").read_text())
    assert len(links) > 10
    assert [link for link in links if not (docs / f"{link}.md").is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_marks_of_an_unfinished_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)
