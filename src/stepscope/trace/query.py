"""SQL over the tables of a trace, by DuckDB."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.errors import QueryError, meant
from stepscope.trace.arguments import arrow_bytes, arrow_numbers
from stepscope.trace.row_order import inverse
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

ARGUMENTS = "arguments"
# What the types of columns are called in docs and on the page, and statements to begin with.
KINDS = {"i8": "int8", "i32": "int32", "i64": "int64", "f64": "float64", "text": "text"}
EXAMPLES = {
    "Where the device time of each stage goes, by kernel": """\
select step, stage, name, sum(duration_ns) / 1e6 as device_ms, count(*) as calls
from events
where category in ('kernel', 'memcpy', 'memset', 'communication') and step is not null
group by step, stage, name
order by device_ms desc
limit 20""",
    "The operators that launch the most device time": """\
select operator.name, sum(work.duration_ns) / 1e6 as device_ms, count(*) as launched
from launches
join events as call on call.id = launches.cpu_event
join events as operator on operator.id = call.parent
join events as work on work.id = launches.device_event
group by operator.name
order by device_ms desc
limit 20""",
    "The shapes that an operator was called with": """\
select json->>'$."Input Dims"' as shapes, count(*) as calls, sum(duration_ns) / 1e6 as cpu_ms
from arguments join events on events.id = arguments.event
where name = 'aten::mm'
group by shapes
order by cpu_ms desc""",
}
_HELP = "`show tables` lists the tables, `describe steps` the columns of one"
# Traces and SQL can come from untrusted sources: no access to files.
NO_FILES = {
    "enable_external_access": "false",
    "temp_directory": "",  # else DuckDB writes a folder .tmp where it runs out of memory
}
_UNKNOWN = re.compile(r'Referenced (column|table) "(.*?)" not found.*\nCandidate \w+: "(.*)"')
_READING = ("SELECT", "EXPLAIN", "MULTI")  # DuckDB splits PIVOT into MULTI


def run_query(trace: Trace, sql: str) -> pa.Table:
    """Run one reading statement over the trace's tables; see `Trace.query` and `answer_of`."""
    tables = tables_for(trace, sql)

    def register(connection: Any) -> None:
        for name, table in tables.items():
            connection.register(name, table)

    return answer_of(sql, register)


def tables_for(trace: Trace, sql: str) -> dict[str, pa.Table]:
    """The tables that a query may read: those that it names, and only the columns of the others."""
    import duckdb

    with duckdb.connect(":memory:", config={**NO_FILES}) as connection:
        names = {name.lower() for name in named_tables(connection, sql)}
    full = with_derived_tables(trace, names)
    is_unclear = names and not names & set(full.tables)  # as where a name is put together
    tables = {
        name: (table if name in names or is_unclear else Table(table.schema, {})).to_arrow()
        for name, table in full.tables.items()
    }
    if ARGUMENTS in sql.lower():
        tables[ARGUMENTS] = _arguments(full)
    return tables


def answer_of(
    sql: str, register: Callable[[Any], None], config: Mapping[str, str] = NO_FILES, most_rows: int = 0
) -> pa.Table:
    """The result of one reading statement; `register` gives a connection its tables.

    A result of more than `most_rows`, if that is not 0, is cut after one row more. Raises QueryError if
    the SQL is wrong, or takes more memory than the configuration allows.
    """
    import duckdb

    # Nor access to our variables.
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": "false", **config})
    try:
        statement = _reading(connection.extract_statements(sql))
        register(connection)
        return _answer(connection, statement, most_rows)
    except duckdb.OutOfMemoryException as error:
        raise QueryError(str(error)) from error
    except duckdb.Error as error:
        raise QueryError(_problem(str(error))) from error
    except RuntimeError as error:
        if "interrupted" not in str(error):
            raise
        raise KeyboardInterrupt from error  # DuckDB took Ctrl-C while it registered a table
    finally:
        connection.close()


def _problem(error: str) -> str:
    """What DuckDB says of a statement, in one line unless it shows the place."""
    if (found := _UNKNOWN.search(error)) and (hint := meant(found[2], found[3].split('", "'))):
        return f"there is no {found[1]} {found[2]!r}; {hint}"
    return f"{error}\n{_HELP}" if "\nLINE " in error else f"{' '.join(error.split())} ({_HELP})"


def plain_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """The values of a result's column, numbers as Python has them; QueryError if it has no such time.

    DuckDB sums integers to a 128-bit one, which Arrow knows as a decimal only.
    """
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError) as error:  # ValueError: nanoseconds where Pandas is not installed
        problem = "a date outside the years 1 to 9999" if isinstance(error, OverflowError) else "nanoseconds"
        raise QueryError(
            f"the column {name} holds {problem}; select it as text, with CAST(… AS VARCHAR)"
        ) from error
    return [_plain_number(value) for value in values] if pa.types.is_decimal(column.type) else values


def _plain_number(value: Decimal | None) -> int | float | None:
    return value if value is None else int(value) if value == value.to_integral_value() else float(value)


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def named_tables(connection: Any, sql: str) -> set[str]:
    """The tables that a query names; for statements that DuckDB cannot tell, every word."""
    import duckdb

    with suppress(duckdb.Error):
        return connection.get_table_names(sql)
    return set(re.findall(r"\w+", sql))


def _answer(connection: Any, statement: Any, most_rows: int) -> pa.Table:
    """The result of a statement, run in a thread because DuckDB itself ignores Ctrl-C."""

    def run() -> pa.Table:
        relation = connection.sql(statement)
        return (relation.limit(most_rows + 1) if most_rows else relation).to_arrow_table()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run)
        try:
            return future.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


def _reading(statements: Sequence[Any]) -> Any:
    """The single statement, which must be one that reads."""
    kinds = [statement.type.name for statement in statements]
    if len(kinds) == 1 and kinds[0] in _READING:
        return statements[0]
    named = " and ".join(kinds) or "none"
    raise QueryError(
        f"expected one reading statement (SELECT, DESCRIBE, EXPLAIN …), found {named}; traces are read-only"
    )


def _arguments(trace: Trace) -> pa.Table:
    """The table `arguments(event, json)`, unpacked only for queries that name it."""
    events = inverse(trace.events["source"], int(trace.events["source"].max(initial=-1)) + 1)
    rows = [
        (events[source], text)
        for source, text in trace.arguments.items()
        if source < len(events) and events[source] >= 0
    ]
    numbers = np.array([number for number, _ in rows], np.int32)
    return pa.table({"event": arrow_numbers(numbers), "json": _json([text for _, text in rows])})


def _json(texts: list[bytes]) -> pa.Array:
    with suppress(pa.ArrowInvalid):  # a recorder wrote invalid UTF-8
        return arrow_bytes(texts).cast(pa.large_string())
    return arrow_bytes([t.decode("utf-8", "replace").encode() for t in texts]).cast(pa.large_string())


# The tables, and the function that fills them: by its name, since it is in a package that builds on this one.
_FILLED_BY = (
    (("findings", "evidence"), "stepscope.analyze", "fill_findings"),
    (("operations",), "stepscope.facts.roofline.operator_work", "with_operations"),
    (("contexts", "context_metrics"), "stepscope.facts.contexts.build_tree", "fill_contexts"),
)


def with_derived_tables(trace: Trace, names: Iterable[str]) -> Trace:
    """The trace with the tables of some names computed, unless they have rows already.

    A trace without steps and without contexts has no findings.
    """
    wanted = {name.lower() for name in names}
    if not len(trace["steps"]) and not len(trace["contexts"]):
        wanted -= {"findings", "evidence"}
    for tables, module, function in _FILLED_BY:
        if wanted.intersection(tables) and not any(len(trace[name]) for name in tables):
            trace = getattr(import_module(module), function)(trace)
    return trace
