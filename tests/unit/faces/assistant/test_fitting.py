"""An answer keeps its limit, and says how to ask for what is left out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.errors import ServeError
from stepscope.faces.assistant.fitting import fitted_json, part_of

ROWS = {"step_ms": 12.3456789, "rows": [{"name": f"kernel {n}", "at": list(range(40))} for n in range(100)]}


def fit(data: Any, part: str = "", first: int = 0, limit: int = 4000) -> Any:
    text = fitted_json({}, data, part, first, limit)
    assert len(text.encode()) <= limit
    return json.loads(text)["data"]


def test_outer_rows_before_inner_ones() -> None:
    answer = fit(ROWS)
    assert answer["step_ms"] == 12.346
    assert len(answer["rows"]) > 10
    assert answer["rows"][-1].startswith("… ")
    assert "part=rows, first=" in answer["rows"][-1]
    assert "part=rows.0.at, first=" in answer["rows"][0]["at"][-1]


def test_what_is_left_out_can_be_asked_for() -> None:
    names, first = [], 0
    while True:
        rows = fit(ROWS, "rows", first)
        names += [row["name"] for row in rows if isinstance(row, dict)]
        if not isinstance(rows[-1], str):
            break
        first = int(rows[-1].rpartition("first=")[2])
    assert names == [row["name"] for row in ROWS["rows"]]  # type: ignore[index, attr-defined]


def test_what_is_unknown_takes_no_room() -> None:
    rows = [{"ms": 0.0, "module": "", "line": None, "range": [0, None], "evidence": []}]
    assert fit(rows) == [{"ms": 0.0, "range": [0, None], "evidence": []}]


def test_a_part() -> None:
    assert fit(ROWS, "rows.99.name") == "kernel 99"
    assert fit(ROWS, "rows.3.at", 38) == [38, 39]


def test_a_long_text_is_whole_where_it_is_asked_for() -> None:
    data = {"rows": [{"name": "k" * 3000}]}
    assert len(fit(data)["rows"][0]["name"]) == 300
    assert fit(data, "rows.0.name") == "k" * 3000
    assert fit(data, "rows.0.name", limit=2000)[-1] == "…"


@pytest.mark.parametrize("part", ["row", "rows.100", "rows.-1", "rows.0.at.x", "step_ms.0"])
def test_a_part_that_is_none(part: str) -> None:
    with pytest.raises(ServeError, match="no part"):
        part_of(ROWS, part)


def test_first_needs_a_list() -> None:
    with pytest.raises(ServeError, match="first needs a list"):
        fit(ROWS, "", 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=600),
    lambda inner: st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=80), inner, max_size=60),
    max_leaves=300,
)


@given(JSON, st.integers(500, 4000))
def test_any_data_keep_any_limit(data: Any, limit: int) -> None:
    fit(data, limit=limit)


# What an assistant cannot ask of a tool, and may tell the user to run.
COMMANDS = "run|verify|calibrate|batch|view|redact|watch|export|diff [^ ]|whatif` with --execution-trace"
OPTION = re.compile(
    r"(?<![\w-])--(device|rank|step|range|graph-capture|metric|fits)\b(?! to stepscope)|stepscope \w+ FILE"
)


def texts(package: str) -> Iterator[str]:
    """The texts of a package's sources but docstrings, `3` for what is filled in."""
    for path in sorted((Path(stepscope.__file__).parent / package).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        known = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                known |= {id(part) for part in node.values}
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "3" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known:
                yield node.value


@pytest.mark.parametrize("package", ["analyze", "facts", "models", "trace", "read"])
def test_no_text_of_an_answer_names_an_option_that_a_tool_has(package: str) -> None:
    said = [text for text in texts(package) if " " in text and OPTION.search(text)]
    assert [text for text in said if not re.search(COMMANDS, text)] == []
