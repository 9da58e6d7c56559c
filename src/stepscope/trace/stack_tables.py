"""Concatenates tables of one schema and renumbers references to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.arrays import Array
from stepscope.trace.declaration import Column
from stepscope.trace.table import Table, Text

Offsets = Mapping[str, int]


def stacked(tables: Sequence[Table], offsets: Sequence[Offsets] = ()) -> Table:
    """One table with the rows of all tables, in order.

    Args:
        tables: at least one table, all of one schema.
        offsets: for each table the offset to add to a column, by what the column refers to
            (`Column.refers`); by default 0.
    """
    schema, shifts = tables[0].schema, offsets or [{}] * len(tables)
    columns: dict[str, Any] = {}
    for column in schema.columns:
        if column.kind == "text" and not column.values:
            columns[column.name] = joined_text([table.text(column.name) for table in tables])
        elif column.name != "id":
            parts = [
                _moved(table[column.name], column, shift.get(column.refers, 0))
                for table, shift in zip(tables, shifts, strict=True)
            ]
            values = np.concatenate(parts)
            columns[column.name] = Text(values, column.values) if column.values else values
    return Table(schema, columns)


def _moved(values: Array, column: Column, offset: int) -> Array:
    if not offset:
        return values
    return np.where(values < 0, values, values + offset) if column.nullable else values + offset


def joined_text(parts: Sequence[Text]) -> Text:
    """Several text columns, concatenated over one list of values."""
    index: dict[str, int] = {}
    codes = []
    for part in parts:
        numbers = [index.setdefault(value, len(index)) for value in part.values]
        codes.append(np.array([*numbers, -1], np.int32)[part.codes])
    small = np.int8 if len(index) < 128 else np.int32
    return Text(np.concatenate(codes).astype(small), list(index))
