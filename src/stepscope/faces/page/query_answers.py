"""SQL over the tables of a trace, and the tables there are, within limits."""

import math
import time
from contextlib import suppress
from itertools import takewhile
from threading import Lock
from typing import Any

import msgspec

from stepscope.errors import QueryError, ServeError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.trace.query import ARGUMENTS, EXAMPLES, KINDS, is_number, plain_values
from stepscope.trace.query_process import QueryLimits, run_query_within
from stepscope.trace.schema import SCHEMAS

# The bytes bound what a browser has to parse.
LIMITS = QueryLimits(seconds=20, megabytes=1024, rows=10_000, answer_bytes=16_000_000)
_MAX_SQL = 10_000  # characters; the headers of a request are limited as well
_MAX_EXACT = 2**53  # larger integers lose digits as numbers of JavaScript
_PATIENCE_S = 20  # for other queries, each of which may take as long: clients take turns
_running = Lock()


class ResultColumn(msgspec.Struct):
    """A column of a query's result."""

    name: str
    type: str  # as Arrow calls it
    numeric: bool


class QueryResult(msgspec.Struct):
    """The rows of a query."""

    columns: list[ResultColumn]
    rows: list[list[str | float | bool | None]]  # values by column; integers beyond 2^53 and dates are text
    more: bool  # whether there are more rows than these
    seconds: float  # how long the query ran


class TableColumn(msgspec.Struct):
    """A column of a table."""

    name: str
    type: str
    unit: str  # empty if it has none
    nullable: bool
    meaning: str


class TraceTable(msgspec.Struct):
    """A table that a query can read."""

    name: str
    meaning: str
    columns: list[TableColumn]


class QueryExample(msgspec.Struct):
    """A query to begin with."""

    title: str
    sql: str


class TraceTables(msgspec.Struct):
    """The tables that a query can read, and examples."""

    tables: list[TraceTable]
    examples: list[QueryExample]


def schema(view: TraceView, query: Query) -> TraceTables:
    """The tables that `query` reads, the same for every trace, with example queries."""
    return trace_tables()


def trace_tables() -> TraceTables:
    """The tables of every trace."""
    tables = []
    for table in SCHEMAS.values():
        columns = [filled(TableColumn, one, type=KINDS[one.kind]) for one in table.columns]
        tables.append(TraceTable(table.name, table.meaning, columns))
    examples = [QueryExample(title, sql) for title, sql in EXAMPLES.items()]
    return TraceTables([*tables, _arguments()], examples)


def query(view: TraceView, query: Query) -> QueryResult:
    """The result of one reading SQL statement, within limits of time, memory and size.

    Query:
        sql: the statement; it reads the tables of `schema`, no files and no network.
    """
    sql = query.text("sql")
    if not sql.strip():
        raise ServeError("expected a query, found none")
    if len(sql) > _MAX_SQL:
        raise ServeError(f"expected at most {_MAX_SQL} characters of SQL, found {len(sql)}", 413)
    if not _running.acquire(timeout=_PATIENCE_S):
        raise ServeError("another query is running; try again when it has ended", 429)
    try:
        return _result(view, sql)
    except QueryError as error:
        raise ServeError(_one_line(str(error))) from error
    finally:
        _running.release()


def _still_wanted() -> None:
    """Raise what a thread of a server is to end with if its client has cancelled the request."""
    with suppress(ImportError, RuntimeError):  # anyio before 4.1; no thread of a server
        from anyio.from_thread import check_cancelled

        check_cancelled()


def _result(view: TraceView, sql: str) -> QueryResult:
    start = time.perf_counter()
    table = run_query_within(view.trace, sql, LIMITS, _still_wanted)
    seconds = time.perf_counter() - start
    more = table.num_rows > LIMITS.rows
    table = table.slice(0, LIMITS.rows)
    columns = [ResultColumn(field.name, str(field.type), is_number(field.type)) for field in table.schema]
    named = zip(table.columns, table.schema.names, strict=True)
    cells = [[_cell(value) for value in plain_values(*column)] for column in named]
    return QueryResult(columns, [list(row) for row in zip(*cells, strict=True)], more, seconds)


def _cell(value: Any) -> str | float | bool | None:
    """A value that JSON and JavaScript hold unchanged."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and abs(value) > _MAX_EXACT:
        return str(value)
    return value if value is None or isinstance(value, (str, bool, int)) else str(value)


def _one_line(message: str) -> str:
    """The message without the copy of the query that DuckDB appends."""
    lines = takewhile(lambda line: not line.startswith("LINE "), message.splitlines())
    kept = (line.strip() for line in lines if not line.startswith("tables and columns:"))
    return " ".join(filter(None, kept))


def _arguments() -> TraceTable:
    meaning = "the recorded arguments of an event, unchanged; unpacked only if a query names it"
    columns = [
        TableColumn("event", "int32", "", False, "events.id"),
        TableColumn("json", "text", "", False, "one JSON object; read it with json->>'$.key'"),
    ]
    return TraceTable(ARGUMENTS, meaning, columns)
