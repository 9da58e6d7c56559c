"""The programs that XLA compiled: for each of their instructions what it is and where it is from.

A profile holds the optimised programs themselves. They tie what runs, an instruction or a fusion of
some, to the named scope in which JAX traced it and to the line of Python.

Source: hlo.proto and xla_data.proto (https://github.com/openxla/xla, xla), messages HloProto,
HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata and StackFrameIndexProto.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from stepscope.ingest.wire import BYTES, VARINT, Fields, Span, scan
from stepscope.ingest.xspace import Plane, Source, read_stats

METADATA_PLANE = "/host:metadata"
T = TypeVar("T")
_PROTO = "Hlo Proto"
_NUMBERED = re.compile(r"^(.*)\((\d+)\)$")


class Instruction(NamedTuple):
    """One instruction: its operation, its named scope as JAX wrote it, and `file:line`."""

    opcode: str = ""
    scope: str = ""
    source: str = ""


class Programs:
    """The programs of a file, each read when the first of its instructions is asked for."""

    def __init__(self, source: Source, planes: Iterable[Plane]) -> None:
        self._source = source
        self._by_id: dict[int, Span] = {}
        self._by_name: dict[str, Span] = {}
        self._read: dict[Span, dict[str, Instruction]] = {}
        for plane in planes:
            if plane.name == METADATA_PLANE:
                self._add(plane)

    def _add(self, plane: Plane) -> None:
        for number, kind in plane.kinds.items():
            stats = dict(read_stats(self._source, kind.stats, plane.stat_names))
            if isinstance(stats.get(_PROTO), Span):
                found = _NUMBERED.match(kind.name)
                self._by_id[int(found[2]) if found else number] = stats[_PROTO]
                self._by_name.setdefault(found[1] if found else kind.name, stats[_PROTO])

    @property
    def names(self) -> list[str]:
        """What the programs are called."""
        return list(self._by_name)

    def find(self, program: int, module: str, name: str) -> Instruction:
        """An instruction by its program's number, else its program's name; empty if not found."""
        found = _NUMBERED.match(module)
        span = self._by_id.get(program) or self._by_name.get(found[1] if found else module)
        if span is None:
            return Instruction()
        if span not in self._read:
            self._read[span] = _instructions(self._source, span)
        return self._read[span].get(name, Instruction())


def _instructions(source: Source, proto: Span) -> dict[str, Instruction]:
    """The instructions of one program by their names, which differ within it."""
    result: dict[str, Instruction] = {}
    for module in _inner(source, proto, 1):
        frames = _Frames(source, module)
        last_scope: dict[int, str] = {}  # of each computation, to name a fusion that has none
        for computation in _inner(source, module, 3):
            number = _number(source, computation, 5)
            found = _of_computation(source, computation, frames, last_scope)
            scopes = [one.scope for one in found.values() if one.scope]
            last_scope[number] = scopes[-1] if scopes else ""
            result |= found
    return result


def _of_computation(
    source: Source, computation: Span, frames: _Frames, scope_of: Mapping[int, str]
) -> dict[str, Instruction]:
    spans = _inner(source, computation, 2)
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    found = scan(source.octets, start, end, source.damage)
    names, opcodes = (_texts(source, found.of(number, BYTES), len(spans)) for number in (1, 2))
    scopes, places = _metadata(source, found.of(7, BYTES), len(spans), frames)
    inside = _scopes_inside(source, found.of(38, BYTES), len(spans), scope_of)
    return {
        name: Instruction(opcode, scope or within, place)
        for name, opcode, scope, within, place in zip(
            names, opcodes, scopes, inside, places, strict=True
        )
    }


def _metadata(
    source: Source, found: Fields, count: int, frames: _Frames
) -> tuple[list[str], list[str]]:
    """The scope of each instruction, and its place in the source; empty where it tells none."""
    scopes, places = [""] * count, [""] * count
    inner = scan(source.octets, found.value, found.end, source.damage)
    told = len(found.owner)
    written, files = (_texts(source, inner.of(number, BYTES), told) for number in (2, 3))
    lines, frame = inner.last(4, told).tolist(), inner.last(15, told).tolist()
    for row, owner in enumerate(found.owner.tolist()):
        scopes[owner] = written[row]
        places[owner] = f"{files[row]}:{lines[row]}" if files[row] else frames.place(frame[row])
    return scopes, places


def _scopes_inside(
    source: Source, called: Fields, count: int, scope_of: Mapping[int, str]
) -> list[str]:
    """The scope of the first computation that each instruction calls and that has one."""
    scopes = [""] * count
    columns = (column.tolist() for column in (called.owner, called.value, called.end))
    for owner, start, end in zip(*columns, strict=True):
        inside = (scope_of.get(one, "") for one in _packed(source, start, end))
        scopes[owner] = scopes[owner] or next(filter(None, inside), "")
    return scopes


class _Frames:
    """The places in Python that a program's instructions name by number."""

    def __init__(self, source: Source, module: Span) -> None:
        self._files: list[str] = []
        self._locations: list[tuple[int, int]] = []
        self._frames: list[int] = []
        for index in _inner(source, module, 17):
            for one in source.fields(index):
                if one.kind != BYTES:
                    continue
                inner = Span(one.value, one.end)
                if one.number == 1:
                    self._files.append(source.text(*inner))
                elif one.number == 3:
                    place = _number(source, inner, 1), _number(source, inner, 3)
                    self._locations.append(place)
                elif one.number == 4:
                    self._frames.append(_number(source, inner, 1))

    def place(self, frame: int) -> str:
        """`file:line` of the innermost frame, empty where it is not told; numbers count from 1."""
        location = _at(self._frames, frame) or 0
        file, line = _at(self._locations, location) or (0, 0)
        name = _at(self._files, file)
        return f"{name}:{line}" if name else ""


def _at(values: list[T], number: int) -> T | None:
    return values[number - 1] if 0 < number <= len(values) else None


def _inner(source: Source, span: Span, number: int) -> list[Span]:
    """The messages of one field number in another message."""
    return [
        Span(one.value, one.end)
        for one in source.fields(span)
        if one.number == number and one.kind == BYTES
    ]


def _number(source: Source, span: Span, number: int) -> int:
    found = [
        one.value for one in source.fields(span) if one.number == number and one.kind == VARINT
    ]
    return found[-1] if found else 0


def _texts(source: Source, found: Fields, count: int) -> list[str]:
    result = [""] * count
    for owner, start, end in zip(
        found.owner.tolist(), found.value.tolist(), found.end.tolist(), strict=True
    ):
        result[owner] = source.text(start, end)
    return result


def _packed(source: Source, start: int, end: int) -> Iterable[int]:
    """Numbers that are written one after the other."""
    value = shift = 0
    for byte in source.data[start:end]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0
