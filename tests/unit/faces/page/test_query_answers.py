"""SQL through the server: the rows, and the limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from serving import ask, opened
from starlette.testclient import TestClient

from stepscope.errors import ServeError
from stepscope.faces.page import query_answers
from stepscope.faces.page.trace_view import TraceView
from stepscope.trace.query_process import QueryLimits
from stepscope.trace.schema import SCHEMAS

pytestmark = pytest.mark.main  # each query has one of its own


@pytest.fixture(scope="module")
def trace() -> TraceView:
    return opened()


def rows(trace: TraceView, sql: str) -> list[list[Any]]:
    found: list[list[Any]] = ask(trace, "query", sql=sql)["rows"]
    return found


def limit(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    usual = {"seconds": 20, "megabytes": 1024, "rows": 10_000}
    monkeypatch.setattr(query_answers, "LIMITS", QueryLimits(**{**usual, **limits}))


def test_rows_come_with_the_names_and_kinds_of_their_columns(trace: TraceView) -> None:
    told = ask(trace, "query", sql="select step, 'a' as text, 1.5 as x from steps")
    kinds = [(one["name"], one["numeric"]) for one in told["columns"]]
    assert kinds == [("step", True), ("text", False), ("x", True)]
    assert rows(trace, "select step, step > 1, null from steps order by step desc") == [
        [2, True, None],
        [1, False, None],
    ]


def test_values_that_json_would_change_are_text(trace: TraceView) -> None:
    sql = "select 9007199254740993, 'nan'::double, date '2024-02-03', sum(2), 7::hugeint"
    assert rows(trace, sql) == [["9007199254740993", "nan", "2024-02-03", 2, 7]]


def test_every_table_that_is_listed_can_be_read(trace: TraceView) -> None:
    told = ask(trace, "schema")
    assert {one["name"] for one in told["tables"]} == {*SCHEMAS, "arguments"}
    listed = {(table["name"], one["name"]) for table in told["tables"] for one in table["columns"]}
    found = rows(trace, "select table_name, column_name from information_schema.columns")
    found += [["arguments", row[0]] for row in rows(trace, "describe arguments")]  # made if it is named
    assert listed == {tuple(row) for row in found}
    for example in told["examples"]:
        rows(trace, example["sql"])


def test_a_long_result_is_cut_in_its_order(trace: TraceView, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, rows=3)
    told = ask(trace, "query", sql="select n from range(9) as many(n) order by n desc")
    assert (told["rows"], told["more"]) == ([[8], [7], [6]], True)
    assert not ask(trace, "query", sql="select n from range(3) as many(n)")["more"]


def test_an_endless_query_is_stopped(trace: TraceView, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, seconds=0.2)
    with pytest.raises(ServeError, match=r"stopped after 0\.2 s"):
        ask(trace, "query", sql="select sum(sin(n)) from range(1000000000000) as many(n)")
    limit(monkeypatch, seconds=60)  # a busy machine takes its time for the next one
    assert rows(trace, "select 1") == [[1]]


def test_memory_is_limited_and_nothing_spills_to_disk(
    trace: TraceView, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    limit(monkeypatch, megabytes=64)
    with pytest.raises(ServeError, match="needs more than 64 MB of memory"):
        ask(trace, "query", sql="select list(n) from range(1000000000) as many(n)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("drop table events", "expected one reading statement"),
        ("select 1; select 2", "expected one reading statement"),
        ("select nam from events", "there is no column 'nam'; did you mean name"),
        ("select * from '/etc/passwd.csv'", "disabled"),
        (" ", "expected a query"),
        ("select " + "1" * 10_000, "at most 10000 characters"),
        ("select repeat('x', 20000000)", "larger than 16 MB"),
        ("select date '290000-01-01' as d", "the column d holds a date outside"),
    ],
)
def test_what_is_refused_is_one_line(trace: TraceView, sql: str, message: str) -> None:
    with pytest.raises(ServeError, match=message) as error:
        ask(trace, "query", sql=sql)
    assert "\n" not in str(error.value)


def test_queries_run_one_at_a_time(trace: TraceView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_answers, "_PATIENCE_S", 0.01)
    with query_answers._running, pytest.raises(ServeError, match="another query") as error:
        ask(trace, "query", sql="select 1")
    assert error.value.status == 429


def test_it_needs_the_token(stranger: TestClient) -> None:
    assert stranger.get("/api/traces/run/query", params={"sql": "select 1"}).status_code == 401


def test_it_is_served_with_the_token(user: TestClient) -> None:
    told = user.get("/api/traces/run/query", params={"sql": "select count(*) from events"})
    assert told.json()["rows"] == [[2]]
