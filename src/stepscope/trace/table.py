"""Columns and tables: NumPy arrays, with text interned as codes into a list of distinct values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Array, Mask
from stepscope.errors import name_hint
from stepscope.trace.columns import constant, taken
from stepscope.trace.declaration import Column, Schema
from stepscope.trace.sets import distinct, mask_of, members, one_of
from stepscope.trace.spill import spilled

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_DTYPES: dict[str, type[np.generic]] = {"i8": np.int8, "i32": np.int32, "i64": np.int64, "f64": np.float64}
_FEW_ROWS = 1 << 12  # so many are compared faster in Python


class Text:
    """A column of text: `codes` index into the distinct `values`; -1 is null.

    Tests on text run once per distinct value, not once per row.

    Example:
        >>> Text.of(["mm", "add", "mm"]).mask("mm").tolist()
        [True, False, True]
    """

    __slots__ = ("_passing", "codes", "values")

    def __init__(self, codes: Array, values: Sequence[str]) -> None:
        self.codes = codes
        self.values = values
        self._passing: dict[Callable[[str], bool], Mask] = {}  # of functions that are asked again

    def __reduce__(self) -> tuple[type[Text], tuple[Array, Sequence[str]]]:
        return Text, (self.codes, self.values)

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> Text:
        """Intern plain strings; None becomes null."""
        index: dict[str, int] = {}
        codes = [-1 if text is None else index.setdefault(text, len(index)) for text in texts]
        return cls(np.array(codes, np.int32), list(index))

    @classmethod
    def constant(cls, value: str, length: int) -> Text:
        """One value in every row."""
        return cls(np.zeros(length, np.int8), [value])

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def __iter__(self) -> Iterator[str | None]:
        values = [*self.values, None]
        return (values[code] for code in self.codes.tolist())

    def take(self, rows: Array | Sequence[int]) -> Text:
        """The same column at `rows` (indices or a mask)."""
        text = Text(taken(self.codes, rows), self.values)
        text._passing = self._passing
        return text

    def where(self, test: Callable[[str], bool]) -> Mask:
        """Rows whose value passes `test`, which is called at most once per distinct value.

        Few rows of a column with many values, as of one step, cost no more than the rows.
        """
        if 2 * len(self.codes) < len(self.values):
            few = len(self.codes) < _FEW_ROWS
            used = set(self.codes.tolist()) if few else distinct(self.codes).tolist()
            return one_of(self.codes, [c for c in used if c >= 0 and test(self.values[c])])
        return members(self.codes, self.passing(test)[:-1])

    def passing(self, test: Callable[[str], bool]) -> Mask:
        """Which values pass `test`, then False for null, so that codes can look it up; not to be changed.

        Where many values are tested by a function of a module, its result is kept.
        """
        if (mask := self._passing.get(test)) is not None:
            return mask
        passed = map(bool, map(test, self.values))
        mask = np.fromiter(chain(passed, [False]), np.bool_, len(self.values) + 1)
        is_of_module = isinstance(test, FunctionType) and "<" not in test.__qualname__
        if is_of_module and len(self.values) > _FEW_ROWS:
            self._passing[test] = mask
        return mask

    def mask(self, *wanted: str) -> Mask:
        """Rows whose value is one of `wanted`."""
        return self.where(wanted.__contains__)

    def map(self, function: Callable[[str], str | None]) -> Text:
        """Every value replaced by `function(value)`; None becomes null."""
        inner = Text.of([*(function(value) for value in self.values), None])
        return Text(inner.codes[self.codes], inner.values)

    def recoded(self, values: Sequence[str]) -> Text:
        """The same column with `values` as its list, so that codes can be compared with positions.

        Raises ValueError if a row holds another value.
        """
        if self.values == values:
            return self
        number = {value: code for code, value in enumerate(values)}
        codes = np.array([*(number.get(value, -2) for value in self.values), -1], np.int8)
        if (codes[self.codes] == -2).any():
            raise ValueError(f"expected one of {list(values)}, found {set(self) - set(values)}")
        return Text(codes[self.codes], values)

    def compact(self) -> Text:
        """The same column without unused values."""
        used = mask_of(self.codes, len(self.values) + 1)
        used[-1] = False
        renumbered = np.append(np.cumsum(used[:-1]) - 1, -1).astype(self.codes.dtype)
        values = [value for value, keep in zip(self.values, used, strict=False) if keep]
        return Text(renumbered[self.codes], values)


class Table:
    """An immutable table in the order and types of its schema; large columns lie in files.

    Args:
        schema: its columns.
        columns: an array or Text for each column except `id`, all of one length; omitted columns
            are filled with null (-1), with zero if not nullable, or with empty text.

    Raises:
        ValueError: if a column is unknown or the lengths differ.

    Example:
        >>> from stepscope.trace.schema import STEPS
        >>> steps = Table(STEPS, {"step": [0], "start_ns": [0], "end_ns": [5]})
        >>> steps["end_ns"].tolist()
        [5]
    """

    __slots__ = ("_columns", "_length", "schema")

    def __init__(self, schema: Schema, columns: Mapping[str, ArrayLike | Text]) -> None:
        self.schema = schema
        if unknown := set(columns) - {column.name for column in schema.columns}:
            raise ValueError(f"{schema.name} has no column {sorted(unknown)}")
        lengths = {name: len(values) for name, values in columns.items()}  # type: ignore[arg-type]
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {schema.name} differ in length: {lengths}")
        self._length = next(iter(lengths.values()), 0)
        self._columns = {
            column.name: self._column(column, columns.get(column.name))
            for column in schema.columns
            if column.name != "id"
        }

    def _column(self, column: Column, values: ArrayLike | Text | None) -> Array | Text:
        if column.kind == "text":
            return self._text(column, values)
        if values is None:
            return constant(-1 if column.nullable else 0, self._length, _DTYPES[column.kind])
        # A view that is read-only, so that no stage can change the data of another.
        view = spilled(np.asarray(values, _DTYPES[column.kind])).view()
        view.flags.writeable = False
        return view

    def _text(self, column: Column, values: Any) -> Text:
        if values is None:
            blank = -1 if column.nullable or column.values else 0
            return Text(constant(blank, self._length, np.int8), column.values or [""])
        text = values if isinstance(values, Text) else Text.of(values)
        text = text.recoded(column.values) if column.values else text
        codes = spilled(text.codes)
        return text if codes is text.codes else Text(codes, text.values)

    def __repr__(self) -> str:
        """For prompts and notebooks: `<Table steps: 3 rows of step, rank, …>`."""
        names = ", ".join(column.name for column in self.schema.columns)
        return f"<Table {self.schema.name}: {self._length} rows of {names}>"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> Array:
        """The values of a column (for text, its codes), shape (rows,)."""
        if name == "id":
            return np.arange(self._length, dtype=np.int32)
        column = self._stored(name)
        return column.codes if isinstance(column, Text) else column

    def _stored(self, name: str) -> Array | Text:
        try:
            return self._columns[name]
        except KeyError:
            hint = name_hint(str(name), self._columns)
            raise KeyError(f"{self.schema.name} has no column {name!r}; {hint}") from None

    def text(self, name: str) -> Text:
        """A text column; raises TypeError for a column of numbers."""
        column = self._stored(name)
        if not isinstance(column, Text):
            raise TypeError(f"{self.schema.name}.{name} holds numbers, not text")
        return column

    def spans(self, rows: Array | slice = slice(None)) -> tuple[Array, Array]:
        """Start and end of some rows, by default of all, ns; those of events by their duration."""
        start = self["start_ns"][rows]
        if "duration_ns" in self._columns:
            return start, start + self["duration_ns"][rows]
        return start, self["end_ns"][rows]

    def columns(self) -> dict[str, Array | Text]:
        """Every stored column by name (`id`, the row number, is not stored)."""
        return dict(self._columns)

    def with_columns(self, **columns: ArrayLike | Text) -> Table:
        """A copy with some columns replaced; the others are shared."""
        return Table(self.schema, {**self._columns, **columns})

    def take(self, rows: Array | Sequence[int]) -> Table:
        """The rows at `rows` (indices or a mask); references to other rows are unchanged."""
        rows = np.asarray(rows)
        rows = rows.nonzero()[0] if rows.dtype == np.bool_ else rows
        columns = {
            name: column.take(rows) if isinstance(column, Text) else taken(column, rows)
            for name, column in self._columns.items()
        }
        return Table(self.schema, columns)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row as a dict with None for null, for small tables and tests."""
        lists = {column.name: self._plain(column.name) for column in self.schema.columns}
        return (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))

    def to_arrow(self) -> pyarrow.Table:
        """The table as Arrow, with null as null and text as dictionaries; numbers are not copied."""
        import pyarrow

        return pyarrow.table({column.name: self._arrow(column) for column in self.schema.columns})

    def _arrow(self, column: Column) -> pyarrow.Array:
        from stepscope.trace.arguments import arrow_numbers, arrow_text

        if column.kind == "text":
            text = self.text(column.name)
            return arrow_text(text.codes, text.values)
        values = self[column.name]
        return arrow_numbers(values, values == -1 if column.nullable else None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For every library that reads Arrow's interface, such as `polars.DataFrame(table)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame, null as NA (needs pandas installed)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """The table as a polars DataFrame (needs polars installed)."""
        import polars

        return polars.DataFrame(self)

    def _plain(self, name: str) -> list[Any]:
        column = self.schema.column(name)
        if column.kind == "text":
            return list(self.text(name))
        values: list[Any] = self[name].tolist()
        return [None if value == -1 else value for value in values] if column.nullable else values
