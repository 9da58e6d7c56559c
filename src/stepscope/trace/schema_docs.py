"""Generates `docs/reference/schema.md` from the schema of the tables."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.trace.declaration import Column, Schema
from stepscope.trace.schema import SCHEMAS

KINDS = {"i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f64": "float64", "text": "text"}
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
_HEAD = """\
# The tables of a trace

This page is generated: change `src/stepscope/trace/schema.py` and run \
`python -m stepscope.trace.schema_docs > docs/reference/schema.md`.

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
