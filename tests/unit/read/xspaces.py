"""XLA profiles written by hand, as small as a test needs.

    xspace(
        {"/host:CPU": {"python": [Slice("train", 0, 100, step_num=3)]},
         "/device:GPU:0": {"Stream #7": [Slice("fusion", 20, 10, correlation_id=5)]}},
        programs={"jit_step": {"fusion": Operation("fusion", "jit(step)/jvp(MLP)/add")}},
    )

Source: xplane.proto and hlo.proto, as the readers under test.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.read.xplane.xplane import read_xplane
from stepscope.trace.trace import Trace

ORIGIN_NS = 1_700_000_000_000_000_000
_US = 1_000_000  # ps


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    value %= 2**64
    octets = []
    while value > 127:
        octets.append(value & 127 | 128)
        value >>= 7
    return bytes([*octets, value])


def part(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*parts: tuple[int, int | float | str | bytes]) -> bytes:
    """A message of some fields."""
    return b"".join(part(number, value) for number, value in parts)


class Slice:
    """One event: its name, start and length in microseconds, and its stats."""

    def __init__(self, name: str, start_us: float, duration_us: float, **stats: Any) -> None:
        self.name, self.stats = name, stats
        self.offset_ps, self.duration_ps = round(start_us * _US), round(duration_us * _US)

    @property
    def display_name(self) -> str:
        """What is shown of an operation of TensorFlow, `SCOPE/NAME:TYPE`: its type."""
        return self.name.rpartition(":")[2] if re.match(r"[\w/.]+:[A-Z_]\w*$", self.name) else ""


@dataclass(frozen=True)
class Operation:
    """One instruction of a program.

    Attributes:
        opcode: what it does.
        scope: its named scope.
        file: its place in Python.
        shape: of its result: `f32[8,4]`, or several in parentheses.
        operands: names of its operands, in its computation.
        fields: further fields of its message, encoded.
        members: what it calls: the operations of a computation, the last of which is its root.
        stack: its Python frames, the outermost first, as `model.py:7 Net.__call__`.
        turn: when it executes; by default in the order in which a program lists its operations.
    """

    opcode: str
    scope: str = ""
    file: str = ""
    line: int = 0
    shape: str = ""
    operands: tuple[str, ...] = ()
    fields: bytes = b""
    members: Mapping[str, Operation] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    turn: int = 0


@dataclass
class _Plane:
    name: str
    kinds: dict[str, int] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    displayed: dict[str, bytes] = field(default_factory=dict)

    def stat(self, name: str, value: Any) -> bytes:
        key = self.stats.setdefault(name, len(self.stats) + 1)
        forms = {int: 4, float: 2, str: 5, bytes: 6}
        return message((1, key), (forms[type(value)], value))

    def event(self, one: Slice) -> bytes:
        kind = self.kinds.setdefault(one.name, len(self.kinds) + 1)
        if one.display_name:
            self.displayed[one.name] = part(4, one.display_name)
        stats = [(4, self.stat(name, value)) for name, value in one.stats.items()]
        return message((1, kind), (2, one.offset_ps), (3, one.duration_ps), *stats)

    def line(self, number: int, name: str, slices: Sequence[Slice]) -> bytes:
        events = [(4, self.event(one)) for one in slices]
        return message((1, number), (2, name), (3, ORIGIN_NS), *events)

    def whole(self, lines: Sequence[bytes], entries: Mapping[str, bytes] | None = None) -> bytes:
        kinds = [
            (4, message((1, key), (2, message((1, key), (2, name)) + (entries or {}).get(name, b""))))
            for name, key in self.kinds.items()
        ]
        stats = [
            (5, message((1, key), (2, message((1, key), (2, name))))) for name, key in self.stats.items()
        ]
        return message((2, self.name), *((3, line) for line in lines), *kinds, *stats)


def xspace(
    planes: Mapping[str, Mapping[str, Sequence[Slice]]],
    programs: Mapping[str, Mapping[str, Operation]] | None = None,
) -> bytes:
    """A file of these planes, each of lines by name, numbered from 1, and of these programs."""
    written = []
    for name, lines in planes.items():
        plane = _Plane(name)
        found = [plane.line(n, line, slices) for n, (line, slices) in enumerate(lines.items(), 1)]
        written.append(plane.whole(found, plane.displayed))
    if programs:
        written.append(_metadata(programs))
    return message(*((1, plane) for plane in written))


def _metadata(programs: Mapping[str, Mapping[str, Operation]]) -> bytes:
    plane = _Plane("/host:metadata")
    entries = {}
    for number, (name, operations) in enumerate(programs.items(), 1):
        plane.kinds[f"{name}({number})"] = number
        entries[f"{name}({number})"] = message((5, plane.stat("Hlo Proto", program(operations))))
    return plane.whole([], entries)


def program(operations: Mapping[str, Operation]) -> bytes:
    """A program of one computation and those that its operations call, as an HloProto."""
    computations: list[bytes] = []
    stacks = _Stacks()
    _add_computation(operations, computations, stacks)
    parts = [(3, one) for one in computations]
    entry = len(computations)
    order = sorted(range(len(operations)), key=lambda at: [*operations.values()][at].turn)
    ids = b"".join(varint(at + 1) for at in order)
    schedule = message((1, message((1, entry), (2, message((1, ids))))))
    fields = [(1, "jit_step"), *parts, (6, entry), (7, schedule), (17, stacks.index())]
    return message((1, message(*fields)))


class _Stacks:
    """The frames of a program, numbered from 1, as a StackFrameIndexProto."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, str], int] = {}

    def number(self, stack: Sequence[str]) -> int:
        """The number of the innermost frame, 0 without any."""
        number = 0
        for frame in stack:
            number = self._frames.setdefault((number, frame), len(self._frames) + 1)
        return number

    def index(self) -> bytes:
        """The message; each frame has a file, a function and a location of its own."""
        parts: list[tuple[int, bytes | str]] = []
        for own, (parent, frame) in enumerate(self._frames, 1):
            place, _, function = frame.partition(" ")
            file, _, line = place.partition(":")
            location = message((1, own), (2, own), (3, int(line)))
            parts += [(1, file), (2, function), (3, location)]
            parts += [(4, message((1, own), (2, parent)))]
        return message(*parts)


def _add_computation(operations: Mapping[str, Operation], found: list[bytes], stacks: _Stacks) -> int:
    """Append a computation, after those that it calls; its id."""
    ids = {name: number for number, name in enumerate(operations, 1)}
    instructions = [
        message(
            (1, name),
            (2, one.opcode),
            (3, encoded_shape(one.shape)),
            (7, _metadata_of(one, stacks)),
            (35, ids[name]),
            (36, b"".join(varint(ids[operand]) for operand in one.operands)),
            (38, varint(_add_computation(one.members, found, stacks)) if one.members else b""),
        )
        + one.fields
        for name, one in operations.items()
    ]
    parts = [(2, instruction) for instruction in instructions]
    found.append(message((1, "main"), *parts, (5, len(found) + 1), (6, len(ids))))
    return len(found)


def _metadata_of(one: Operation, stacks: _Stacks) -> bytes:
    return message((2, one.scope), (3, one.file), (4, one.line), (15, stacks.number(one.stack)))


_TYPES = {"pred": 1, "s8": 2, "s32": 4, "u8": 6, "f16": 10, "f32": 11, "bf16": 16, "f8e4m3fn": 20}


def encoded_shape(text: str) -> bytes:
    """A shape such as `f32[8,4]`, or several in parentheses, as a ShapeProto."""
    arrays = [
        message((2, _TYPES[kind]), (3, b"".join(varint(int(n)) for n in sizes.split(",") if n)))
        for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", text)
    ]
    return message((2, 13), *((4, one) for one in arrays)) if text[:1] == "(" else b"".join(arrays)


def read_bytes(data: bytes) -> Trace:
    """The trace in a file of these bytes."""
    return read_xplane(io.BytesIO(data), False, lambda size: None)


def read_space(
    planes: Mapping[str, Mapping[str, Sequence[Slice]]],
    programs: Mapping[str, Mapping[str, Operation]] | None = None,
) -> Trace:
    """The same, read."""
    return read_bytes(xspace(planes, programs))
