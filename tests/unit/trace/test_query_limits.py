"""Queries that ask for more than they may have: each ends, and says so in one line."""

from __future__ import annotations

import random
import resource

import pyarrow as pa
import pytest

from stepscope.errors import QueryError
from stepscope.trace.query_process import QueryLimits, query_apart

pytest.importorskip("duckdb")
pytestmark = pytest.mark.main
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
    "concat_ws(',', list_transform(range({}), n -> repeat('x', 1000)))",
    "list_sort(list_transform(range({}), n -> hash(n)))",
    "length(array_to_string(list_resize([1], {}), ''))",
    "to_base64(repeat('x', {})::blob)",
    "md5(repeat('x', {}))",
    "regexp_replace(repeat('a', {}), '(a*)*b', 'c')",
    "repeat('a', {}) like '%a%a%a%a%a%b'",
    "levenshtein(repeat('ab', {}), repeat('ba', {}))",
    "damerau_levenshtein(repeat('ab', {}), repeat('ba', {}))",
    "jaro_winkler_similarity(repeat('ab', {}), repeat('ba', {}))",
    "string_split(repeat('a,', {}), ',')",
    "length(bitstring('1', {}))",
    "2::hugeint ** {} + factorial(least({}, 100)::int)",
    "(select max(a.n + b.n) from generate_series(1, {}) a(n) join generate_series(1, {}) b(n) on a.n < b.n)",
    "(with recursive t(n) as (select 1 union all select n + 1 from t where n < {}) select sum(n) from t)",
    "(with recursive t(x) as (select 'x' union all select x || x from t where length(x) < {})"
    " select max(x) from t)",
    "(select count(distinct n) from range({}) as a(n))",
    "(select quantile_cont(n, 0.5) from range({}) as a(n))",
    "(select sum(s) from (select sum(n) over (order by n desc) s from range({}) as a(n)))",
    "json_array_length(to_json(range({})))",
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


def peak_kb(of: int = resource.RUSAGE_CHILDREN) -> int:
    return resource.getrusage(of).ru_maxrss


def most_kb() -> int:
    """What a query may take; of a child the system also counts what its parent held when it started it."""
    return max(700 << 10, peak_kb(), peak_kb(resource.RUSAGE_SELF))


@pytest.mark.parametrize("text", TEXTS[:6])
def test_a_text_of_a_gigabyte_is_refused(text: str) -> None:
    most = most_kb()
    message = outcome(f"select {text.format(1_000_000_000)} as x")
    assert "needs more than 256 MB" in message or "stopped after 1 s" in message or "larger than" in message
    assert peak_kb() <= most


@pytest.mark.full(every=4)
@pytest.mark.parametrize("block", range(7))
def test_functions_of_any_size_end(block: int) -> None:
    chance, most = random.Random(block), most_kb()
    for text in TEXTS:
        size = 10 ** chance.randint(0, 10)
        message = outcome(f"select {text.format(size, size)} as x from events")
        # What it is refused for is a limit, or DuckDB's own of this function.
        assert len(message) < 1500
    assert peak_kb() <= most
