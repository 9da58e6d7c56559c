"""Queries that ask for more than they may have: each ends, and says so in one line."""

from __future__ import annotations

import random
import resource

import pyarrow as pa
import pytest

from stepscope.errors import QueryError
from stepscope.trace.query_process import QueryLimits, query_apart

pytest.importorskip("duckdb")
LIMITS = QueryLimits(seconds=1, megabytes=256, rows=100, answer_bytes=1_000_000)
TABLES = {"events": pa.table({"name": ["mm", "add"], "ts": [1, 2]})}
TEXTS = (
    "printf('%{}d', 1)",
    "format('{{:{}d}}', 1)",
    "lpad('x', {}, 'y')",
    "rpad('x', {}, 'yz')",
    "repeat('xy', {})",
    "length(repeat('xy', {}))",
    "list_sum(range({}))",
    "array_to_string(range({}), ',')",
    "(select count(*) from range({}) as a(n), range({}) as b(m) where n * m = 7)",
    "(select string_agg(n::varchar, ',') from range({}) as a(n))",
    "(select list(n) from range({}) as a(n))",
)


def outcome(sql: str) -> str:
    try:
        query_apart(sql, TABLES, LIMITS)
        return ""
    except QueryError as error:
        return str(error)


def test_a_small_query_has_its_answer() -> None:
    limits = QueryLimits(60, LIMITS.megabytes, LIMITS.rows)
    assert query_apart("select name, ts from events where ts > 1", TABLES, limits).to_pylist() == [
        {"name": "add", "ts": 2}
    ]


@pytest.mark.parametrize("text", TEXTS[:6])
def test_a_text_of_a_gigabyte_is_refused(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    message = outcome(f"select {text.format(1_000_000_000)} as x")
    assert "needs more than 256 MB" in message or "stopped after 1 s" in message or "larger than" in message
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 700 << 10)  # kB


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.full(every=4)) for block in range(1, 17))]
)
def test_functions_of_any_size_end(block: int) -> None:
    chance = random.Random(block)
    for text in TEXTS:
        size = 10 ** chance.randint(0, 10)
        message = outcome(f"select {text.format(size, size)} as x from events")
        # What it is refused for is a limit, or DuckDB's own of this function.
        assert len(message) < 1500
