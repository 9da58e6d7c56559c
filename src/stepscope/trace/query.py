"""SQL over the tables, by DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from stepscope.errors import QueryError
from stepscope.trace.arrow import arrow_bytes, arrow_numbers, arrow_text
from stepscope.trace.schema import Column
from stepscope.trace.table import Table

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

ARGUMENTS = "arguments"
_READING = ("SELECT", "EXPLAIN", "MULTI")  # MULTI is what PIVOT is split into


def arrow_table(table: Table) -> pa.Table:
    """A table as Arrow, with null as null and text as dictionaries."""
    arrays = {column.name: _arrow_column(table, column) for column in table.schema.columns}
    return pa.table(arrays)


def _arrow_column(table: Table, column: Column) -> pa.Array:
    if column.kind == "text":
        text = table.text(column.name)
        return arrow_text(text.codes, text.values)
    values = table[column.name]
    return arrow_numbers(values, values == -1 if column.nullable else None)


def run_query(trace: Trace, sql: str) -> pa.Table:
    """Run `sql` over the trace's tables; see `Trace.query`."""
    import duckdb

    # A trace may come from a stranger and so may the SQL beside it: no files, no network, none of
    # this process's own variables.
    connection = duckdb.connect(
        ":memory:",
        config={"enable_external_access": "false", "python_enable_replacements": "false"},
    )
    try:
        statement = _reading(connection.extract_statements(sql))
        for name, table in trace.tables.items():
            connection.register(name, arrow_table(table))
        if ARGUMENTS in sql.lower():
            connection.register(ARGUMENTS, _arguments(trace))
        return _answer(connection, statement)
    except duckdb.Error as error:
        raise QueryError(f"{error}\nthe tables and columns are in docs/schema.md") from error
    finally:
        connection.close()


def _answer(connection: Any, statement: Any) -> pa.Table:
    """The result of a statement, which Ctrl-C ends: DuckDB does not look for it meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: connection.sql(statement).to_arrow_table())
        try:
            return asked.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _reading(statements: Sequence[Any]) -> Any:
    """The one statement there may be: a trace is read, never written."""
    kinds = [statement.type.name for statement in statements]
    if len(kinds) == 1 and kinds[0] in _READING:
        return statements[0]
    found = " and ".join(kinds) or "none"
    raise QueryError(
        f"expected one statement that reads (SELECT, DESCRIBE, EXPLAIN …), found {found}; "
        "a trace cannot be changed"
    )


def _arguments(trace: Trace) -> pa.Table:
    """The pseudo-table `arguments(event, json)`, unpacked only for a query that names it."""
    events = np.full(int(trace.events["source"].max(initial=-1)) + 1, -1, np.int32)
    events[trace.events["source"]] = trace.events["id"]
    rows = [
        (events[source], text)
        for source, text in trace.arguments.items()
        if source < len(events) and events[source] >= 0
    ]
    numbers = np.array([number for number, _ in rows], np.int32)
    return pa.table({"event": arrow_numbers(numbers), "json": _json([text for _, text in rows])})


def _json(texts: list[bytes]) -> pa.Array:
    try:
        return arrow_bytes(texts).cast(pa.large_string())
    except pa.ArrowInvalid:  # some recorder wrote what is not UTF-8
        return arrow_bytes([t.decode("utf-8", "replace").encode() for t in texts]).cast(
            pa.large_string()
        )
