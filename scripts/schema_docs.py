"""Generates `docs/reference/schema.md` from the schema of the tables."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.trace.declaration import Column, Schema
from stepscope.trace.query import EXAMPLES, KINDS
from stepscope.trace.schema import SCHEMAS

_HEAD = """\
# The tables of a trace

This page is generated: change `src/stepscope/trace/schema.py` and run \
`python scripts/schema_docs.py > docs/reference/schema.md`.

`stepscope query FILE "SQL"` and `Trace.query(sql)` run DuckDB's SQL over these tables; \
`Trace["events"]["start_ns"]` gives one column as a NumPy array. Times and durations are whole \
nanoseconds; times are relative to the start of the trace. A column marked *nullable* is null in \
SQL, and -1 in NumPy, if a row has no such value.
"""
_ARGUMENTS = """\
## arguments

the recorded arguments of an event (shapes, grid, stream, …), unchanged; they are unpacked only \
for a query that names this table

| column | type | meaning |
|---|---|---|
| event | int32 | events.id |
| json | text | one JSON object; DuckDB reads it with `json->>'$.key'` |

`Trace.event_arguments(event)` returns the same as a dict.
"""


def page() -> str:
    """The content of `docs/reference/schema.md`."""
    tables = "\n".join(_table(schema) for schema in SCHEMAS.values())
    return f"{_HEAD}\n{tables}\n{_ARGUMENTS}\n{_examples()}"


def _table(schema: Schema) -> str:
    rows = "\n".join(
        f"| {column.name} | {', '.join(_type(column))} | {column.meaning} |" for column in schema.columns
    )
    head = "| column | type | meaning |\n|---|---|---|"
    return f"## {schema.name}\n\n{schema.meaning}\n\n{head}\n{rows}\n"


def _type(column: Column) -> Iterator[str]:
    yield KINDS[column.kind]
    if column.unit:
        yield column.unit
    if column.nullable:
        yield "nullable"


def _examples() -> str:
    parts = [f"{title}:\n\n```sql\n{sql}\n```\n" for title, sql in EXAMPLES.items()]
    return "## Examples\n\n" + "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
