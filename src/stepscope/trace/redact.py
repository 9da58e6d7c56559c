"""A trace without what identifies its user: texts replaced, kernels, operators and numbers kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from stepscope.trace.arguments import ArgumentBlock, Arguments, parse
from stepscope.trace.declaration import DEVICE_WORK
from stepscope.trace.portable import REDACTED
from stepscope.trace.redacted_words import Words
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

REVEALED = (
    "kernels, operators and calls of libraries, and their shapes and types",
    "times, when the recording began, sizes, counts, line numbers, and numbers in names",
    "names and versions of devices and frameworks, ranks and process numbers",
    "files of public packages, and words that stepscope looks for, such as forward or loss",
    "which names are the same, in all files redacted with one key",
)
_PATHS = {"modules.path", "modules.name", "storages.path", "contexts.module", "evidence.module"}
_FILES = {"modules.file", "modules.call_file", "frames.file", "stacks.file"}
_FILES |= {"storages.file", "contexts.file", "evidence.file"}
_RANGES = ("annotation", "python")  # whose names are the user's, also where they look like operators
_FREE = ("capture", "model", "properties", "recording_cost")  # fields of the metadata with any texts
_DEVICE_KINDS = ("kernel", "memcpy", "memset", "communication")  # of contexts


def redacted(trace: Trace, key: bytes) -> Trace:
    """The annotated trace with texts replaced under `key`; rows, order and numbers are the same."""
    words = Words(key)
    tables = {name: _table(table, words) for name, table in trace.tables.items()}
    return Trace(tables, _metadata(trace.metadata, words), _arguments(trace.arguments, words))


def _table(table: Table, words: Words) -> Table:
    columns = {
        column.name: _column(table, column.name, words)
        for column in table.schema.columns
        if column.kind == "text" and not column.values and len(table)
    }
    return table.with_columns(**columns) if columns else table


def _column(table: Table, column: str, words: Words) -> Text:
    name, text = f"{table.schema.name}.{column}", table.text(column).compact()
    if name == "events.name":
        return _names(text, table.text("category"), DEVICE_WORK, words)
    if name == "contexts.name":
        return _names(text, table.text("kind"), _DEVICE_KINDS, words)
    change = words.module_path if name in _PATHS else words.file if name in _FILES else words.text
    change = words.class_name if name == "modules.class" else change
    return text.map(change)


def _names(names: Text, kinds: Text, of_device: tuple[str, ...], words: Words) -> Text:
    """Names of device work as they are, of ranges and others replaced: all may have the same name."""
    how = np.where(kinds.mask(*of_device), 2, kinds.mask(*_RANGES))
    values = [*map(words.event, names.values), *map(words.range, names.values), *names.values]
    codes = np.where(names.codes < 0, -1, names.codes + how * len(names.values))
    return Text(codes, values).compact().map(str)


def _metadata(metadata: Metadata, words: Words) -> Metadata:
    plain: dict[str, Any] = msgspec.to_builtins(metadata.to_json(), enc_hook=str)
    replaced = {name: words.value(plain[name]) for name in _FREE}
    replaced["properties"][REDACTED] = True
    return replace(metadata, source="", devices=tuple(words.value(plain["devices"], "devices")), **replaced)


def _arguments(arguments: Arguments, words: Words) -> Arguments:
    encode, value = msgspec.json.encode, words.value
    blocks: list[ArgumentBlock] = []
    for block in arguments.blocks:
        texts = [encode(value(parse(text))) for _, text in Arguments((block,)).items()]
        blocks.append(ArgumentBlock.of(block.sources, texts))
    return Arguments(tuple(blocks))
