"""The recorded arguments of events, kept as compressed JSON text and parsed on demand.

They are most of a trace's bytes and are read one event at a time, so they stay JSON text in
compressed blocks, in file order.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.base.arrays import Array, Ids32, IntArray, Mask, Octets, Times
from stepscope.trace.columns import GrowingArray
from stepscope.trace.spill import joined

_BLOCK_BYTES = 1 << 20  # of JSON text, which are unpacked to read the arguments of one event


@dataclass(frozen=True, eq=False)
class ArgumentBlock:
    """The arguments of some consecutive events of a file: `sources[i]` has the i-th JSON text."""

    sources: Ids32
    ends: Times
    packed: bytes | Octets

    @classmethod
    def of(cls, sources: Sequence[int] | IntArray, texts: Sequence[Any]) -> ArgumentBlock:
        """Pack one JSON text (anything with the buffer interface) for each of `sources`."""
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        return cls.joined(sources, ends, b"".join(texts))

    @classmethod
    def written(cls, sources: IntArray, texts: Sequence[bytes]) -> list[ArgumentBlock]:
        """A block of those texts that are not empty, or none."""
        kept = np.flatnonzero([len(text) for text in texts])
        return [cls.of(sources[kept], [texts[row] for row in kept.tolist()])] if len(kept) else []

    @classmethod
    def joined(cls, sources: Sequence[int] | IntArray, ends: Times, text: bytes | Octets) -> ArgumentBlock:
        """Pack the JSON texts that end at `ends` in `text`, one for each of `sources`."""
        packed = pa.compress(text, codec="lz4_raw", asbytes=True) if len(ends) else b""
        return cls(np.asarray(sources, np.int32), ends, packed)

    @classmethod
    def several(
        cls, sources: Sequence[int] | IntArray, ends: Times, text: bytes | Octets
    ) -> list[ArgumentBlock]:
        """The same in blocks of about a MiB each, as a block is unpacked for each event in it."""
        block = (ends - 1) // _BLOCK_BYTES
        borders = [*np.flatnonzero(np.diff(block, prepend=-1)).tolist(), len(ends)]
        return [
            cls.joined(sources[a:b], ends[a:b] - start, text[start : int(ends[b - 1])])
            for a, b in pairwise(borders)
            for start in [int(ends[a - 1]) if a else 0]
        ]

    def text(self) -> bytes:
        """Every JSON text, end to end."""
        return _unpack(self)

    def find(self, source: int) -> bytes | None:
        """The JSON text of the event at `source`, or None."""
        row = int(self.sources.searchsorted(np.int32(source)))  # same type, or all are converted
        if row == len(self.sources) or self.sources[row] != source:
            return None
        start = int(self.ends[row - 1]) if row else 0
        return self.text()[start : int(self.ends[row])]

    def find_all(self, sources: IntArray) -> list[bytes]:
        """The JSON texts of the events at `sources`, `{}` for an event without arguments."""
        starts, ends = self.spans(sources)
        spans, text = zip(starts.tolist(), ends.tolist(), strict=True), self.text()
        return [text[start:end] if end > start else b"{}" for start, end in spans]

    def spans(self, sources: IntArray) -> tuple[Times, Times]:
        """Where in `text` those of the events at `sources` begin and end; at 0 where none is."""
        rows = np.minimum(self.sources.searchsorted(sources), len(self.sources) - 1)
        has_some = self.sources[rows] == sources
        starts = np.append(0, self.ends[:-1])[rows]
        return np.where(has_some, starts, 0), np.where(has_some, self.ends[rows], 0)

    def shifted(self, offset: int) -> ArgumentBlock:
        """The same block with all positions increased by `offset`."""
        return ArgumentBlock(self.sources + np.int32(offset), self.ends, self.packed)


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments by an event's position in its file (`events.source`), in blocks in that order."""

    blocks: tuple[ArgumentBlock, ...] = ()
    _firsts: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_firsts", [int(block.sources[0]) for block in self.blocks])

    def of(self, source: int) -> dict[str, Any]:
        """The arguments of the event at position `source`, empty if it has none."""
        text = self.text(source)
        return parse(text) if text is not None else {}

    def text(self, source: int) -> bytes | None:
        """The JSON text of the arguments of the event at position `source`, None if it has none."""
        index = bisect_right(self._firsts, source) - 1
        return self.blocks[index].find(source) if index >= 0 else None

    def texts(self, sources: IntArray) -> list[bytes]:
        """The JSON text of many events, in their order; `{}` for one without arguments."""
        order = np.argsort(sources, kind="stable")
        texts, ascending = [b"{}"] * len(sources), sources[order]
        for block, part in self.parts(ascending):
            for row, text in zip(order[part].tolist(), block.find_all(ascending[part]), strict=True):
                texts[row] = text
        return texts

    def parts(self, sources: IntArray) -> Iterator[tuple[ArgumentBlock, slice]]:
        """The blocks that may hold arguments of events, each with its part of ascending `sources`.

        Events before the first block have none.
        """
        borders = [*np.searchsorted(sources, self._firsts).tolist(), len(sources)]
        for block, start, end in zip(self.blocks, borders, borders[1:], strict=False):
            if end > start:
                yield block, slice(start, end)

    def items(self) -> Iterable[tuple[int, bytes]]:
        """Every (position, JSON text), block by block."""
        for block in self.blocks:
            text, start = block.text(), 0
            for source, end in zip(block.sources.tolist(), block.ends.tolist(), strict=True):
                yield source, text[start:end]
                start = end


class GrowingArguments:
    """Arguments to which blocks are added, kept end to end."""

    def __init__(self) -> None:
        self._sources, self._ends = GrowingArray(np.int32), GrowingArray(np.int64)
        self._packed = GrowingArray(np.uint8)
        self._bounds = [(0, 0)]

    def add(self, block: ArgumentBlock, offset: int) -> None:
        """Add the next block, with its positions increased by `offset`."""
        self._sources.append(block.sources + np.int32(offset))
        self._ends.append(block.ends)
        self._packed.append(np.frombuffer(block.packed, np.uint8))
        self._bounds.append((len(self._sources), len(self._packed)))

    def finished(self) -> Arguments:
        """All of them; nothing can be added afterwards."""
        sources, ends = self._sources.finished(), self._ends.finished()
        packed = self._packed.finished()
        return Arguments(
            tuple(
                ArgumentBlock(sources[row:next_row], ends[row:next_row], packed[start:end])
                for (row, start), (next_row, end) in pairwise(self._bounds)
            )
        )


@cache
def _decoder() -> Callable[[bytes], Any]:
    """The fast one, imported by what parses arguments: a report from the cache does not."""
    import msgspec

    return msgspec.json.decode


_DECODER = json.JSONDecoder(strict=False)
# Of PyTorch: lists, and what is in them; anything else under these names is not what it seems.
_LISTS: dict[str, type] = {"Input Dims": object, "Input type": str, "Input Strides": object}
_LISTS |= {"Concrete Inputs": object, "block": int}  # not "grid": Triton's is text


def parse(text: bytes) -> dict[str, Any]:
    """Recorded arguments as a dict; anything but an object is under the key `value`.

    So is text that cannot be parsed, because it nests too deeply or holds a number of thousands of
    digits. Shapes and types that are no lists of such are left out.
    """
    try:
        value = _decoder()(text)
    except (ValueError, RecursionError):  # slower, but it reads NaN and control characters
        readable = text.decode("utf-8", "replace")
        try:
            value = _DECODER.decode(readable)
        except (ValueError, RecursionError):
            return {"value": readable}
    if not isinstance(value, Mapping):
        return {} if value is None else {"value": value}
    wrong = [name for name in _LISTS.keys() & value.keys() if not _is_as_named(name, value[name])]
    if not wrong:
        return dict(value)
    lists = {name: _list_in(value[name]) for name in wrong}
    value = {**value, **lists}
    return {name: each for name, each in value.items() if name not in lists or _is_as_named(name, each)}


def _list_in(value: Any) -> Any:
    """The list that other tools write as a text, such as `"[[2, 3], []]"` or `"['float']"`."""
    try:
        return _decoder()(value.replace("'", '"').encode()) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return None


def _is_as_named(name: str, value: Any) -> bool:
    kind = _LISTS[name]
    return isinstance(value, list) and (kind is object or all(isinstance(each, kind) for each in value))


@lru_cache(maxsize=32)  # of about a MiB each
def _unpack(block: ArgumentBlock) -> bytes:
    size = int(block.ends[-1]) if len(block.ends) else 0
    return bytes(pa.decompress(block.packed, size, codec="lz4_raw", asbytes=True)) if size else b""


def arrow_numbers(values: Array, null: Mask | None = None) -> pa.Array:
    """An Arrow array over the memory of `values`; the numbers of null rows stay below its mask.

    Example:
        >>> arrow_numbers(np.array([7, -1]), np.array([False, True])).to_pylist()
        [7, None]
    """
    values = np.ascontiguousarray(values)
    valid = None
    if null is not None and null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def arrow_text(codes: Array, values: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary array; a negative code is null."""
    texts = arrow_bytes([value.encode() for value in values]).view(pa.large_string())
    return pa.DictionaryArray.from_arrays(arrow_numbers(codes, codes < 0), texts)


def arrow_bytes(values: Sequence[bytes]) -> pa.LargeBinaryArray:
    """An array of byte strings."""
    return _byte_strings(values, b"".join(values))


def arrow_octets(values: Sequence[Octets]) -> pa.LargeBinaryArray:
    """The same of byte strings that are arrays, in a file if they are large."""
    return _byte_strings(values, joined(values, np.uint8))


def _byte_strings(values: Sequence[bytes | Octets], text: bytes | Octets) -> pa.LargeBinaryArray:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def bytes_of(array: pa.LargeBinaryArray) -> list[Octets]:
    """The byte strings of an array, without a copy."""
    _, ends, values = array.buffers()
    text = np.frombuffer(values or b"", np.uint8)
    bounds = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    return [text[start:end] for start, end in pairwise(bounds)]


_TYPES = {
    16: ("complex<double>",),
    8: ("double", "long", "long int", "int64_t", "complex<float>"),
    4: ("float", "int"),
    2: ("half", "bfloat16", "short", "short int"),
    1: ("bool", "byte", "char", "signed char", "unsigned char"),
}
_BYTES = {name: size for size, names in _TYPES.items() for name in names}


def element_bytes(kind: str) -> int:
    """Bytes per element of a type as PyTorch's recorder names it; 0 for anything else.

    Example:
        >>> element_bytes("c10::BFloat16"), element_bytes("c10::Float8_e4m3fnuz"), element_bytes("Scalar")
        (2, 1, 0)
    """
    name = kind.removeprefix("c10::").lower()
    return 1 if name.startswith("float8_") else _BYTES.get(name, 0)
