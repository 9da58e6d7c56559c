"""An answer keeps its limit, and says how to ask for what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
