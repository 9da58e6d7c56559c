"""`stepscope query`: SQL over the tables of a trace."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.errors import QueryError
from stepscope.faces.terminal.options import takes_format
from stepscope.faces.terminal.output import json_text, printable
from stepscope.faces.terminal.source import InputFile, takes_file

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 8192  # converted at a time
_NULL = "null"
_WIDEST_CELL = 80  # kernel names run to thousands of letters; the other formats have all of them


@click.command()
@takes_file
@click.argument("sql")
@takes_format("How to write the rows.", "table", "json", "csv")
def query(file: InputFile, sql: str, form: str) -> None:
    """Run SQL on the tables of the trace FILE, or of all ranks in the folder of `ranks -o`.

    The query `show tables` lists the tables, and `describe events` the columns of one. A query of a
    trace ends after 20 s, or at 1 GB of memory; in Python, `Trace.query` has no such limits.

    \b
    stepscope query run.stepscope "select * from steps"
    """
    shown = printable if sys.stdout.isatty() else str  # a file of CSV has what the table has
    sys.stdout.writelines(f"{shown(line)}\n" for line in FORMATS[form](_result(file, sql)))


def _result(file: InputFile, sql: str) -> pa.Table:
    from stepscope.models.ranks.dataset import is_dataset

    if is_dataset(Path(file.path)):
        from stepscope.models.ranks.dataset_query import query_dataset

        return query_dataset(Path(file.path), sql)
    from stepscope.trace.query_process import QueryLimits, run_query_within

    limits = QueryLimits(seconds=20, megabytes=1024, rows=0, answer_bytes=1_000_000_000)
    return run_query_within(file.load(memory=True), sql, limits)


def as_table(result: pa.Table) -> Iterator[str]:
    """Aligned columns under their names, numbers to the right.

    Example:
        >>> import pyarrow as pa
        >>> print(*as_table(pa.table({"name": ["mm"], "n": [2]})), sep="\\n")
        name  n
        ----  -
        mm    2
    """
    from stepscope.trace.query import is_number

    rows = [[_cell(value) for value in row] for row in _rows(result)]
    names = result.schema.names
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    right = [is_number(kind) for kind in result.schema.types]
    for row in (names, ["-" * width for width in widths], *rows):
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in cells).rstrip()


def as_json(result: pa.Table) -> Iterator[str]:
    """An array with one object a line; raises QueryError if two columns have one name, of which an object
    would lose one."""
    twice = sorted({name for name in result.schema.names if result.schema.names.count(name) > 1})
    if twice:
        raise QueryError(
            f"expected each column to have a name of its own, found {' and '.join(twice)} twice; "
            "give them names with AS"
        )
    yield "["
    for number, row in enumerate(_rows(result)):
        values = dict(zip(result.schema.names, map(_plain, row), strict=True))
        yield ("," if number else " ") + json_text(values, 0)
    yield "]"


def as_csv(result: pa.Table) -> Iterator[str]:
    """Comma-separated values under their names; null is empty."""
    yield _csv_line(result.schema.names)
    yield from map(_csv_line, _rows(result))


FORMATS: dict[str, Callable[[pa.Table], Iterator[str]]] = {"table": as_table, "json": as_json, "csv": as_csv}


def _rows(result: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Plain values, a batch at a time, so that a long result is never all objects at once."""
    from stepscope.trace.query import plain_values

    for batch in result.to_batches(max_chunksize=_BATCH_ROWS):
        columns = map(plain_values, batch.columns, batch.schema.names)
        yield from zip(
            *([None if cell != cell else cell for cell in column] for column in columns), strict=True
        )


def _plain(value: Any) -> Any:
    """A value that JSON has, or else as text, such as a date."""
    return value if isinstance(value, bool | int | float | list | dict | None) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return _NULL
    text = f"{value:.6g}" if isinstance(value, float) else printable(str(value)).replace("\n", " ")
    return text if len(text) <= _WIDEST_CELL else text[: _WIDEST_CELL - 1] + "…"


def _csv_line(values: Any) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
