"""A trace as bytes that another machine and another version may read: `tables.msgpack` of a capture.

The columns of each table, little-endian, a constant one as one row; text as codes and values. A column
that a version lacks is left out, or null. All row numbers are checked, as files come from strangers.
"""

from typing import Any

import msgspec
import numpy as np

from stepscope.base.arrays import Array
from stepscope.base.typed_data import convert
from stepscope.errors import TraceError
from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.columns import constant
from stepscope.trace.declaration import Column, Schema
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.spill import joined
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

_DTYPES = {"i8": "<i1", "i32": "<i4", "i64": "<i8", "f64": "<f8", "text": "<i4"}
REDACTED = "stepscope_redacted"  # property of a trace whose facts are taken as they are
_LAST_NS = 1 << 61  # sums and differences of times fit 64 bits


class PortableColumn(msgspec.Struct, array_like=True):
    """Numbers or codes, one where all rows have it; `values` of text."""

    numbers: bytes
    values: list[str] | None = None


class PortableTrace(msgspec.Struct):
    """The tables with rows, the metadata, and the arguments: JSON end to end, with their sources."""

    version: int
    rows: dict[str, int]
    tables: dict[str, dict[str, PortableColumn]]
    metadata: dict[str, Any]
    sources: bytes = b""
    ends: bytes = b""
    arguments: bytes = b""


def to_bytes(trace: Trace) -> bytes:
    tables = {name: table for name, table in trace.tables.items() if len(table)}
    texts = [block.text() for block in trace.arguments.blocks]
    starts = np.cumsum([0, *map(len, texts)])[:-1].tolist()
    blocks = trace.arguments.blocks
    portable = PortableTrace(
        version=1,
        rows={name: len(table) for name, table in tables.items()},
        tables={
            name: {one.name: _packed(one, table) for one in table.schema.columns if one.name != "id"}
            for name, table in tables.items()
        },
        metadata=trace.metadata.to_json(),
        sources=joined([block.sources for block in blocks], np.int32).astype("<i4").tobytes(),
        ends=joined([b.ends + s for b, s in zip(blocks, starts, strict=True)], np.int64)
        .astype("<i8")
        .tobytes(),
        arguments=b"".join(texts),
    )
    return msgspec.msgpack.encode(portable, enc_hook=str)


def from_bytes(content: bytes) -> Trace:
    """The inverse of `to_bytes`; raises TraceError for another form, or rows that do not exist."""
    try:
        portable = msgspec.msgpack.decode(content, type=PortableTrace)
        if any(not 0 <= rows <= len(content) for rows in portable.rows.values()):
            raise ValueError("more rows than bytes")
        tables = {name: _table(SCHEMAS[name], portable) for name in portable.tables if name in SCHEMAS}
        for table in tables.values():
            _check_order(table)
        metadata = convert(portable.metadata, Metadata)
        if not metadata.ranks or abs(metadata.origin_ns) > _LAST_NS:
            raise ValueError("no rank, or a time that no clock shows")
        return Trace(tables, metadata, _arguments(portable))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise TraceError(f"the tables of the capture are damaged ({error})") from error


def _packed(column: Column, table: Table) -> PortableColumn:
    values = None
    numbers = table[column.name]
    if column.kind == "text":
        text = table.text(column.name).compact()
        numbers, values = text.codes, list(text.values)
    numbers = numbers[:1] if (numbers == numbers[0]).all() else numbers
    return PortableColumn(numbers.astype(_DTYPES[column.kind]).tobytes(), values)


def _table(schema: Schema, portable: PortableTrace) -> Table:
    rows = portable.rows[schema.name]
    stored = portable.tables[schema.name]
    columns = {
        column.name: _column(column, stored[column.name], rows, portable.rows)
        for column in schema.columns
        if column.name in stored and column.name != "id"
    }
    return Table(schema, columns)


def _column(column: Column, stored: PortableColumn, rows: int, sizes: dict[str, int]) -> Array | Text:
    numbers = np.frombuffer(stored.numbers, _DTYPES[column.kind])
    numbers = numbers.astype(numbers.dtype.newbyteorder("="))
    if len(numbers) == 1:
        numbers = constant(numbers[0], rows, numbers.dtype.type)
    if len(numbers) != rows:
        raise ValueError(f"{column.name} has {len(numbers)} rows, expected {rows}")
    if column.kind == "text":
        values = stored.values or []
        _check(column, numbers, -1, len(values) - 1)
        return Text(numbers, values)
    if column.refers and column.refers not in ("file", "clock"):
        _check(column, numbers, -1 if column.nullable else 0, sizes.get(column.refers, 0) - 1)
    if column.unit == "ns":
        _check(column, numbers, -_LAST_NS, _LAST_NS)
    return numbers


def _check(column: Column, numbers: Array, least: int, most: int) -> None:
    if len(numbers) and not (least <= numbers.min() and numbers.max() <= most):
        raise ValueError(f"{column.name} has a value outside of {least} to {most}")


def _check_order(table: Table) -> None:
    """Parents come before their children, so that no walk upwards is endless, and events by start."""
    names = {column.name for column in table.schema.columns}
    if "parent" in names and not (table["parent"] < np.arange(len(table))).all():
        raise ValueError(f"a parent in {table.schema.name} is not before its children")
    if "duration_ns" in names and (table["duration_ns"] < 0).any():
        raise ValueError(f"a duration in {table.schema.name} is negative")
    if table.schema.name == "events" and (np.diff(table["start_ns"]) < 0).any():
        raise ValueError("events are not in order")


def _arguments(portable: PortableTrace) -> Arguments:
    sources = np.frombuffer(portable.sources, "<i4").astype(np.int32)
    ends = np.frombuffer(portable.ends, "<i8").astype(np.int64)
    if not len(sources):
        return Arguments()
    if len(sources) != len(ends) or (np.diff(ends, prepend=0) < 0).any() or (np.diff(sources) < 0).any():
        raise ValueError("arguments are not in order")
    if ends[-1] != len(portable.arguments):
        raise ValueError("arguments have another length")
    return Arguments(tuple(ArgumentBlock.several(sources, ends, portable.arguments)))
