"""What the pages say: links that the site's strict build does not check, commands, names of files."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from stepscope.faces.terminal.commands import COMMANDS, stepscope

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|(?<=[\s;(/]))stepscope (" + "|".join(COMMANDS) + r")\b([^;&|#]*)")


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


@EACH_PAGE
def test_no_page_has_marks_of_an_unfinished_merge(page: Path) -> None:
    assert not re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)


@EACH_PAGE
def test_lists_and_tables_have_an_empty_line_before_them(page: Path) -> None:
    """Without it the site shows them as text: its Markdown is not GitHub's."""
    text = CODE.sub("", page.read_text())
    begins = re.compile(r"^(?![ #|<-]|\d+\. ).+\n(- |\d+\. |\|)", re.MULTILINE)
    assert [match[0] for match in begins.finditer(text)] == []


def test_an_example_in_a_docstring_is_code_on_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "griffe", SimpleNamespace(Extension=object, Object=object))
    as_code = runpy.run_path(str(ROOT / "scripts" / "docs_examples.py"))["as_code"]
    text = "What.\n\nExample:\n    >>> one(2)  # doctest: +SKIP\n    3\n\nRaises:\n    E: always."
    code = "What.\n\nExamples:\n    ```pycon\n    >>> one(2)\n    3\n    ```\n\nRaises:\n    E: always.\n"
    assert as_code(text) == code


def given(page: str) -> Iterator[tuple[str, str, bool]]:
    """Each command of a page with each option, and whether it stands after the script, which gets it."""
    for block in CODE.finditer(page):
        for line in (block[1] or block[2]).splitlines():
            for name, text in COMMAND.findall(line):
                words = text.split()
                own = len([*takewhile(lambda word: not word.endswith(".py") and word != "-m", words)])
                for place, word in enumerate(words):
                    if option := re.search(r"(?<![\w-])--?[a-z][\w-]*", word):
                        yield name, option[0], own < place


@EACH_PAGE
def test_commands_have_the_options_that_are_written(page: Path) -> None:
    context = click.Context(stepscope)
    for name, option, is_of_the_script in given(page.read_text()):
        command = stepscope.get_command(context, name)
        assert command is not None
        known = {word for part in command.params for word in (*part.opts, *part.secondary_opts)}
        assert (option in {"--help", *known}) != is_of_the_script, f"stepscope {name} {option}"
