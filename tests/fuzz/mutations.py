"""Ways to damage a file: its bytes, or the values, fields, cells, opcodes and members in it."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import random
import sqlite3
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from stepscope.errors import IngestError
from stepscope.read.memory_snapshot.safe_pickle import load

TOKENS = [
    b"",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\\",
    b"\0",
    b"\xff",
    b"\n",
    b"null",
    b"NaN",
    b"-1",
    b"1e999",
    b"1e-7",
    b"9" * 30,
    b"-9223372036854775808",
    b"2147483648",
    b'"\\ud800"',
    b"{}",
    b"[]",
    b'"x"',
    b"true",
    b'"traceEvents":[',
    b"[" * 200,
    b'{"a":' * 200,
    b"\x0a\xff\x7f",
]
KINDS = ("insert", "replace", "cut", "copy", "flip", "number", "value")
LONGEST_BYTES = 1 << 20
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    -1e300,
    1e-300,
    float("nan"),
    float("inf"),
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    "",
    "x",
    "\ud800",
    "0",
    "9" * 30,
    "nan",
    [],
    {},
    [[]],
    "a" * 5000,
    "\0",
    "../../etc/passwd",
    "漢" * 40,
    [None],
    {"": None},
    -5,
    7,
]
Edit = tuple[str, float, float, bytes, int]
Mutate = Callable[[bytes, random.Random], bytes]


def mutated(data: bytes, edits: list[Edit]) -> bytes:
    """Data after some edits, whose places are parts of its length."""
    for kind, first, second, token, byte in edits:
        start, end = sorted((int(first * len(data)), int(second * len(data))))
        if kind == "insert":
            data = data[:start] + token + data[start:]
        elif kind == "replace":
            data = data[:start] + token + data[start + len(token) :]
        elif kind == "cut":
            data = data[:start] + data[end:]
        elif kind == "copy":
            data = data[:end] + data[start:end] + data[end:]
        elif kind == "flip":
            data = data[:start] + bytes([byte]) + data[start + 1 :]
        else:
            data = _with_other_value(data, first, token, b"0123456789" if kind == "number" else b"")
    return data[:LONGEST_BYTES]


def _with_other_value(data: bytes, place: float, token: bytes, digits: bytes) -> bytes:
    """Data in which the number, or the value after the colon, at some place is another."""
    start = data.find(b":", int(place * len(data))) + 1
    end = start
    while end < len(data) and (data[end] in digits + b" -." if digits else data[end] not in b",}]"):
        end += 1
    return data[:start] + token + data[end:]


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to four edits of bytes; small ones as often as large ones."""
    edits: list[Edit] = []
    for _ in range(chance.randint(1, 4)):
        first = chance.random()
        near = first + chance.random() ** 8 if chance.random() < 0.7 else chance.random()
        token, byte = chance.choice(TOKENS), chance.randrange(256)
        edits.append((chance.choice(KINDS), first, min(near, 1.0), token, byte))
    return mutated(data, edits)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Other values, keys and lengths; the text stays valid JSON."""
    try:
        tree = [json.loads(data)]
    except (ValueError, RecursionError):
        return mutate_bytes(data, chance)
    _edit_tree(tree, chance)
    return json.dumps(tree[0] if tree else None).encode()[:LONGEST_BYTES]


def _edit_tree(tree: list[Any], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 4, 10))):
        places = list(_places(tree))
        if not places:
            break
        container, key = chance.choice(places)
        _edit(container, key, chance, places)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each container with each of its keys, outermost first."""
    waiting = [tree]
    while waiting:
        container = waiting.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], (dict, list)):
                waiting.append(container[key])


def _edit(container: Any, key: Any, chance: random.Random, places: list[tuple[Any, Any]]) -> None:
    kind = chance.choice(("odd", "odd", "odd", "delete", "copy", "elsewhere", "scale", "rename"))
    value = container[key]
    if kind == "delete":
        del container[key]
    elif kind == "copy" and isinstance(container, list):
        container[key:key] = [_copy(value) for _ in range(chance.choice((1, 1, 2, 40)))]
    elif kind == "rename" and isinstance(container, dict):
        container[chance.choice(["", "ts", "dur", "args", "name", key + "_"])] = container.pop(key)
    elif kind == "elsewhere":
        other, place = chance.choice(places)
        if place in other if isinstance(other, dict) else place < len(other):
            container[key] = _copy(other[place])
    elif kind == "scale" and type(value) in (int, float):
        container[key] = value * chance.choice((-1, 0.5, 1000, 10**9, 0))
    else:
        container[key] = _copy(chance.choice(ODD_VALUES))


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def mutate_protobuf(data: bytes, chance: random.Random) -> bytes:
    """Other fields, at any depth; lengths stay right."""
    fields = _fields(data)
    if not fields:
        return mutate_bytes(data, chance)
    at = chance.randrange(len(fields))
    number, wire, value = fields[at]
    kind = chance.random()
    if isinstance(value, bytes) and wire == 2 and _fields(value) and kind < 0.85:
        fields[at] = number, wire, mutate_protobuf(value, chance)
    elif kind < 0.1:
        del fields[at]
    elif kind < 0.2:
        fields[at:at] = [fields[at]] * chance.choice((1, 1, 3, 50))
    elif kind < 0.3:
        fields[at] = chance.randint(1, 60), wire, value
    elif isinstance(value, int):
        fields[at] = number, wire, chance.choice((0, 1, 2**31, 2**63, 2**64 - 1, value ^ 1, 7))
    else:
        odd = (b"", b"\xff" * 8, b"f32[4,4]", b"\0" * 8, mutate_bytes(value, chance))
        fields[at] = number, wire, chance.choice(odd)
    return b"".join(_field(*field) for field in fields)[:LONGEST_BYTES]


def _fields(data: bytes) -> list[tuple[int, int, Any]]:
    """The fields of a message, or none if it is not one."""
    found: list[tuple[int, int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire, value = tag & 7, None
        if wire == 0:
            value, at = _varint(data, at)
        elif wire in (1, 2, 5):
            size, at = (8 if wire == 1 else 4, at) if wire != 2 else _varint(data, at)
            value, at = data[at : at + size], at + size
        if value is None or at > len(data) or not tag >> 3:
            return []
        found.append((tag >> 3, wire, value))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    return 0, len(data) + 1


def _field(number: int, wire: int, value: Any) -> bytes:
    tag = _octets(number << 3 | wire)
    if isinstance(value, int):
        return tag + _octets(value)
    return tag + (_octets(len(value)) if wire == 2 else b"") + value


def _octets(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def mutate_sqlite(data: bytes, chance: random.Random) -> bytes:
    """Other cells, columns and tables; the file stays a valid database."""
    try:
        with closing(sqlite3.connect(":memory:")) as file:
            file.deserialize(data)
            for _ in range(chance.choice((1, 1, 2, 5))):
                _edit_table(file, chance)
            file.commit()
            return file.serialize()
    except (sqlite3.Error, OverflowError, UnicodeError, IndexError, MemoryError):
        return mutate_bytes(data, chance)


def _edit_table(file: sqlite3.Connection, chance: random.Random) -> None:
    tables = [name for (name,) in file.execute("select name from sqlite_master where type='table'")]
    table = chance.choice(tables)
    columns = [row[1] for row in file.execute(f"pragma table_info({table})")]
    column, kind = chance.choice(columns), chance.random()
    if kind < 0.05:
        file.execute(f"drop table {table}")
    elif kind < 0.15:
        file.execute(f"alter table {table} rename column {column} to {column}_")
    elif kind < 0.25:
        file.execute(f"insert into {table} select * from {table}")
    elif kind < 0.3:
        file.execute(f"delete from {table}")
    else:
        odd = [*(one for one in ODD_VALUES if not isinstance(one, (list, dict))), b"\xff\x00"]
        some = "" if chance.random() < 0.3 else " where random() % 2 = 0"
        file.execute(f"update {table} set {column} = ?{some}", (chance.choice(odd),))


def mutate_pickle(data: bytes, chance: random.Random) -> bytes:
    """Opcodes that move, repeat or are missing."""
    try:
        borders = [place or 0 for _, _, place in pickletools.genops(data)]
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeError, TypeError):
        return mutate_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 2, 5))):
        first = chance.randrange(len(borders))
        last = min(first + chance.choice((1, 1, 2, 5, 40)), len(borders) - 1)
        start, end = borders[first], borders[last]
        at = borders[chance.randrange(len(borders))]
        kind = chance.random()
        if kind < 0.35:
            data = data[:at] + data[start:end] * chance.choice((1, 1, 9)) + data[at:]
        elif kind < 0.6:
            data = data[:start] + data[end:]
        else:
            data = data[:start] + mutate_bytes(data[start:end], chance)[:200] + data[end:]
    return data[:LONGEST_BYTES]


def mutate_pickled(data: bytes, chance: random.Random) -> bytes:
    """Other values, keys and lengths, written by any protocol; the pickle stays valid."""
    try:
        tree = [json.loads(json.dumps(load(data)))]  # copies, where a pickle refers to one value twice
    except (IngestError, ValueError, TypeError, RecursionError):
        return mutate_bytes(data, chance)
    _edit_tree(tree, chance)
    value = tree[0] if tree else None
    return pickle.dumps(value, chance.choice((2, 2, 4, 5)))[:LONGEST_BYTES]


def mutate_zip(data: bytes, chance: random.Random) -> bytes:
    """Damages one member by its kind; the archive stays valid."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, NotImplementedError, RuntimeError, EOFError):
        return mutate_bytes(data, chance)
    if not members:
        return mutate_bytes(data, chance)
    name = chance.choice(sorted(members))
    for ending, mutate in _MEMBERS.items():
        if name.endswith(ending):
            members[name] = chance.choice((mutate, mutate, mutate_bytes))(members[name], chance)
    if chance.random() < 0.1:
        members[name + chance.choice(("", "2", "/../x"))] = members.pop(name)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return file.getvalue()


_MEMBERS: dict[str, Mutate] = {
    ".json": mutate_json,
    ".pb": mutate_protobuf,
    ".pickle": mutate_pickle,
    ".arrow": mutate_bytes,
    "": mutate_bytes,
}
_TEXT_TOKENS = [
    b"",
    b"%",
    b"%00",
    b"%ff",
    b"..",
    b"/",
    b"?",
    b"&",
    b"=",
    b"-1",
    b"1e999",
    b"nan",
    b"0",
    b"9" * 30,
    b"'",
    b'"',
    b"[]",
    b"{}",
    b"null",
    b";",
    b"\r\n",
    b"\xff",
    b"a" * 3000,
    b"x",
    b" ",
]


def mutate_text(data: bytes, chance: random.Random) -> bytes:
    """Words that are replaced, removed, or moved."""
    words = data.replace(b"&", b" & ").replace(b"=", b" = ").split(b" ")
    for _ in range(chance.choice((1, 2, 4))):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        words[at] = chance.choice((chance.choice(_TEXT_TOKENS), words[other]))
    text = b" ".join(words).replace(b" & ", b"&").replace(b" = ", b"=")
    return chance.choice((text, text, mutate_bytes(text, chance)))


def mutate_messages(data: bytes, chance: random.Random) -> bytes:
    """Messages of the language server with other values, in another order, or framed wrongly."""
    bodies = [part.partition(b"\r\n\r\n")[2] for part in data.split(b"Content-Length")[1:]]
    if not bodies or chance.random() < 0.15:
        return mutate_bytes(data, chance)
    at = chance.randrange(len(bodies))
    bodies[at] = mutate_json(bodies[at], chance)
    if chance.random() < 0.2:
        bodies.insert(chance.randrange(len(bodies)), chance.choice(bodies))
    return b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)
