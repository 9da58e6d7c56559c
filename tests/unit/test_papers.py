"""The page of the papers' claims is generated, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest
from papers_docs import CLAIMS, Claim, claims, page

ROOT = Path(__file__).parents[2]
ROWS = {"S": 36, "D": 40, "C": 46, "H": 40}  # claims of SKYLINE, DAYDREAM, DEEPCONTEXT and HOTLINE


def problem(test: str) -> str:
    """Why a test or a benchmark is not there; "" if it is."""
    file, _, name = test.partition("::")
    if not (ROOT / file).is_file():
        return f"there is no {file}"
    if not name:
        return "" if file.startswith("benchmarks/") else f"{test} names no test"
    text = (ROOT / file).read_text("utf-8")
    if file.startswith("web/test/"):
        return "" if f'"{name}"' in text else f"{file} has no test with the title {name}"
    functions = {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    is_test = file.startswith("tests/") and name.startswith("test_") and name in functions
    return "" if is_test else f"{file} has no test {name}"


def test_the_page_is_current() -> None:
    current = (ROOT / "docs/evidence/papers.md").read_text("utf-8")
    assert current == page(), "run python scripts/papers_docs.py > docs/evidence/papers.md"


def test_each_claim_is_there_once() -> None:
    written = re.findall(r'^ +"(\w+)": \{"claim"', CLAIMS.read_text("utf-8"), re.MULTILINE)
    assert written == [f"{letter}{row}" for letter, rows in ROWS.items() for row in range(1, rows + 1)]
    assert [row for paper in claims().values() for row in paper] == written


def test_a_claim_is_short_and_has_a_test_that_exists_or_says_what_it_needs() -> None:
    rows = {row: one for paper in claims().values() for row, one in paper.items()}
    assert [row for row, one in rows.items() if bool(one.held_by) == bool(one.needs)] == []
    assert [row for row, one in rows.items() if not 3 <= len(one.claim.split()) <= 6] == []
    assert [said for one in rows.values() if one.held_by and (said := problem(one.held_by))] == []


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("tests/unit/test_papers.py::test_the_page_is_current", ""),
        ("tests/unit/test_papers.py::test_of_nothing", "has no test"),
        ("tests/unit/test_papers.py::problem", "has no test"),
        ("tests/unit/test_papers.py", "names no test"),
        ("tests/unit/no_such_file.py::test_x", "there is no"),
        ("web/test/labels.test.ts::of nothing", "no test with the title"),
        ("benchmarks/simulate.py", ""),
    ],
)
def test_a_test_that_is_not_there_is_named(test: str, said: str) -> None:
    assert bool(problem(test)) == bool(said)
    assert said in problem(test)


def test_a_claim_has_no_other_fields() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode('{"claim": "a b c", "held": "x"}', type=Claim)
