"""A trace on disk: a folder of Arrow files, memory-mapped on load.

    trace.json        the schema's fingerprint, and size and CRC-32 of every other member
    metadata.json     the metadata
    events.arrow      one Arrow IPC file for each table that has rows, null numbers as -1
    arguments.arrow   the packed blocks of the events' arguments

Every byte is checked before use, so damage causes an error and never a wrong number. Nothing is unpickled.

Source: Apache Arrow, "IPC File Format" (https://arrow.apache.org/docs/format/Columnar.html).
"""

import json
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa

from stepscope.base.arrays import Array
from stepscope.errors import TraceError
from stepscope.trace.arguments import (
    ArgumentBlock,
    Arguments,
    arrow_numbers,
    arrow_octets,
    arrow_text,
    bytes_of,
)
from stepscope.trace.cache_folder import written
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.spill import joined
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

LAYOUT = 1  # of the folder: raise it when what this file writes changes
INDEX = "trace.json"
_METADATA = "metadata.json"
_ARGUMENTS = "arguments"


def fingerprint() -> int:
    """A number that changes with the layout of the folder or of any table."""
    columns = [
        (name, column.name, column.kind, column.nullable)
        for name, schema in SCHEMAS.items()
        for column in schema.columns
    ]
    return zlib.crc32(repr((LAYOUT, columns)).encode())


def save(trace: Trace, folder: Path) -> None:
    """Write a trace to `folder` atomically.

    An existing one is replaced. Nothing is flushed to disk: one that a power cut damages fails its
    checksums. Raises OSError if it cannot be written.
    """
    with written(folder) as work:
        for name, batch in _batches(trace).items():
            path = str(work / f"{name}.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
        (work / _METADATA).write_text(json.dumps(trace.metadata.to_json(), default=str), "utf-8")
        members = {path.name: _facts(path) for path in work.iterdir()}
        index = {"format": "stepscope trace", "fingerprint": fingerprint(), "members": members}
        (work / INDEX).write_text(json.dumps(index), "utf-8")


def load(folder: Path) -> Trace:
    """Load a trace that `save` wrote, its columns mapped from disk.

    Raises TraceError if a member is missing, damaged, or of another version of the schema.
    """
    try:
        index = json.loads((folder / INDEX).read_bytes())
        if index["fingerprint"] != fingerprint():
            raise TraceError(f"{folder}: stored by another version of stepscope; open the original file")
        members = {name: _checked(folder / name, **facts) for name, facts in index["members"].items()}
        return _trace(members)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise TraceError(f"{folder}: the stored trace is damaged ({error!r})") from error


# -- writing


def _batches(trace: Trace) -> dict[str, pa.RecordBatch]:
    batches = {name: _batch(table) for name, table in trace.tables.items() if len(table)}
    if trace.arguments.blocks:
        batches[_ARGUMENTS] = _argument_batch(trace.arguments)
    return batches


def _batch(table: Table) -> pa.RecordBatch:
    """The columns unchanged: null keeps its -1, in text below Arrow's mask."""
    columns = {
        name: arrow_text(column.codes, column.values) if isinstance(column, Text) else arrow_numbers(column)
        for name, column in table.columns().items()
    }
    return _batch_of(columns)


def _argument_batch(arguments: Arguments) -> pa.RecordBatch:
    blocks = arguments.blocks
    bounds = arrow_numbers(np.cumsum([0, *(len(block.sources) for block in blocks)]))
    sources = arrow_numbers(joined([block.sources for block in blocks], np.int32))
    ends = arrow_numbers(joined([block.ends for block in blocks], np.int64))
    return _batch_of(
        {
            "sources": pa.LargeListArray.from_arrays(bounds, sources),
            "ends": pa.LargeListArray.from_arrays(bounds, ends),
            "packed": arrow_octets([np.frombuffer(block.packed, np.uint8) for block in blocks]),
        }
    )


def _batch_of(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """The columns as one batch; `pa.record_batch` takes a dict since Arrow 16 only."""
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _facts(path: Path) -> dict[str, int]:
    content = pa.memory_map(str(path)).read_buffer()
    return {"size": content.size, "crc32": zlib.crc32(content)}


# -- reading


def _checked(path: Path, size: int, crc32: int) -> pa.Buffer:
    content = pa.memory_map(str(path)).read_buffer()
    if content.size != size or zlib.crc32(content) != crc32:
        raise ValueError(f"{path.name} has changed: {content.size} bytes, {size} were written")
    return content


def _trace(members: dict[str, pa.Buffer]) -> Trace:
    metadata = json.loads(members.pop(_METADATA).to_pybytes())
    batches = {
        name.removesuffix(".arrow"): pa.ipc.open_file(content).get_batch(0)
        for name, content in members.items()
    }
    arguments = _arguments(batches.pop(_ARGUMENTS, None))
    tables = {
        name: Table(SCHEMAS[name], {column: _column(batch.column(column)) for column in batch.schema.names})
        for name, batch in batches.items()
    }
    return Trace(tables, Metadata.from_json(metadata), arguments)


def _column(array: pa.Array) -> Array | Text:
    if isinstance(array, pa.DictionaryArray):
        return Text(_numbers(array.indices), tuple(array.dictionary.to_pylist()))
    return _numbers(array)


def _numbers(array: pa.Array) -> Array:
    """The numbers without a copy, including those below a mask."""
    dtype = str(array.type)  # not `to_pandas_dtype`, which imports pandas in Arrow 15
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]


def _arguments(batch: pa.RecordBatch | None) -> Arguments:
    if batch is None:
        return Arguments()
    bounds: list[int] = batch.column("sources").offsets.to_pylist()
    sources, ends = (_numbers(batch.column(name).values) for name in ("sources", "ends"))
    parts = zip(bounds, bounds[1:], bytes_of(batch.column("packed")), strict=False)
    blocks = (ArgumentBlock(sources[first:last], ends[first:last], part) for first, last, part in parts)
    return Arguments(tuple(blocks))
