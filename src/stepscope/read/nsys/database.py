"""The tables of an SQLite file from anyone: nothing in it runs, and its cells may be of any type.

Only tables with stored rows are read: no view, no virtual table. SQLite is told not to trust the
file's schema (https://www.sqlite.org/security.html).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np

from stepscope.base.arrays import Integers
from stepscope.errors import IngestError, one_line

_ROWS = 1 << 16  # at a time
_MOST_HEAP = 256 << 20  # bytes that SQLite itself may use; pages and one row at a time
_INSTRUCTIONS = 10_000  # of SQLite's machine, between two looks at how many were run
# All that a file may need: a row of 30 columns takes 40 instructions and 30 bytes, and is read by
# three queries; the schema takes some, too.
_FEW_INSTRUCTIONS, _PER_BYTE = 10_000_000, 10
_ROW_BYTES = 3  # of a page, at least, for each row: its place, its size and its type
_TABLES = "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"


class Database:
    """A file's tables, read-only; a context manager.

    Attributes:
        columns: the names of each table's columns, by the table's name.

    Raises:
        IngestError: from every method, if the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        source = f"file:{quote(str(path))}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(source, uri=True)
        self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
        self._connection.execute("pragma trusted_schema = off")
        self._connection.execute(f"pragma hard_heap_limit = {_MOST_HEAP}")
        self._connection.set_progress_handler(self._is_over, _INSTRUCTIONS)
        size = path.stat().st_size
        self._instructions = _FEW_INSTRUCTIONS + _PER_BYTE * size
        self._most_rows = size // _ROW_BYTES
        names = [str(name) for (name,) in self._rows(_TABLES)]
        self.columns = {name: self._columns_of(name) for name in names}

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def integers(self, table: str, *names: str) -> dict[str, Integers]:
        """Columns of a table as int64, shape (rows,), -1 where a cell or the column is missing."""
        known = self.columns.get(table, frozenset())
        parts = [f'coalesce(cast("{name}" as integer), -1)' if name in known else "-1" for name in names]
        batches = [np.zeros((0, len(names)), np.int64)]
        if known:
            rows = self._batches(f'select {", ".join(parts)} from "{table}"')
            batches += [np.array(batch, np.int64) for batch in rows]
        return dict(zip(names, np.ascontiguousarray(np.concatenate(batches).T), strict=True))

    def cells(self, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """The rows of some columns of a table; none if it lacks one of them."""
        if self.columns.get(table, frozenset()).issuperset(names):
            quoted = ", ".join(f'"{name}"' for name in names)
            for batch in self._batches(f'select {quoted} from "{table}"'):
                yield from batch

    def _columns_of(self, table: str) -> frozenset[str]:
        sql = "select name from pragma_table_info(?)"
        return frozenset(str(name) for (name,) in self._rows(sql, (table,)))

    def _rows(self, sql: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        return [row for batch in self._batches(sql, values) for row in batch]

    def _is_over(self) -> bool:
        """Whether SQLite ran more instructions than the whole file can need: pages form a circle."""
        self._instructions -= _INSTRUCTIONS
        return self._instructions < 0

    def _batches(self, sql: str, values: Sequence[str] = ()) -> Iterator[list[tuple[Any, ...]]]:
        count = 0
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(_ROWS):
                count += len(rows)
                if count > max(self._most_rows, _ROWS):
                    raise IngestError(
                        "the SQLite database is damaged (a table has more rows than the file has room "
                        "for); export the recording again"
                    )
                yield rows
        except (sqlite3.Error, UnicodeError) as error:  # SQLite quotes damaged names in its errors
            raise IngestError(
                f"the SQLite database is damaged ({one_line(error)}); export the recording again"
            ) from error
