"""Tables of one schema, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from stepscope.trace.table import Table, Text


def stacked(tables: Sequence[Table]) -> Table:
    """One table with the rows of all, in their order; at least one table."""
    schema = tables[0].schema
    columns: dict[str, Any] = {}
    for column in schema.columns:
        if column.kind == "text" and not column.values:
            columns[column.name] = _joined([table.text(column.name) for table in tables])
        elif column.name != "id":
            codes: Any = np.concatenate([table[column.name] for table in tables])
            columns[column.name] = Text(codes, column.values) if column.values else codes
    return Table(schema, columns)


def _joined(texts: Sequence[Text]) -> Text:
    shifts = np.cumsum([0, *(len(text.values) for text in texts)])
    codes = [
        np.where(text.codes < 0, -1, text.codes.astype(np.int32) + shift)
        for text, shift in zip(texts, shifts.tolist(), strict=False)
    ]
    values = list(chain.from_iterable(text.values for text in texts))
    return Text(np.concatenate(codes).astype(np.int32), values)
