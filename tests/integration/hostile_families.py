"""Files made to do harm, by family: snapshots by opcode, SQLite with pages exchanged, archives.

Each family is a dict from a name to a function that makes the file's bytes.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickletools
import random
import sqlite3
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path

import pyarrow as pa

Family = dict[str, Callable[[], bytes]]
MANY = 100_000
PAGE_BYTES = 512

# -- memory snapshots, by opcode of a pickle

HEAD = b"\x80\x04}(\x8c\x08segments"
_ARGUMENTS = {
    "uint1": b"\1", "uint2": b"\1\0", "uint4": b"\1\0\0\0", "uint8": b"\1" + bytes(7), "int4": b"\1\0\0\0",
    "long1": b"\1\1", "long4": b"\1\0\0\0\1", "float8": bytes(8), "floatnl": b"1.5\n",
    "string1": b"\1a", "string4": b"\1\0\0\0a", "bytes1": b"\1a", "bytes4": b"\1\0\0\0a",
    "bytes8": b"\1" + bytes(7) + b"a", "bytearray8": b"\1" + bytes(7) + b"a",
    "unicodestring1": b"\1a", "unicodestring4": b"\1\0\0\0a", "unicodestring8": b"\1" + bytes(7) + b"a",
    "decimalnl_short": b"1\n", "decimalnl_long": b"1L\n", "stringnl": b"'a'\n", "unicodestringnl": b"a\n",
    "stringnl_noescape": b"1\n", "stringnl_noescape_pair": b"os\nsystem\n",
}  # fmt: skip
_BEFORE = {
    "mark": b"(", "stackslice": b"NN", "list": b"]", "dict": b"}", "set": b"\x8f", "str": b"\x8c\1a",
    "any": b"N", "buffer": b"C\1a",
}  # fmt: skip


def _opcode(opcode: pickletools.OpcodeInfo) -> bytes:
    return opcode.code.encode("latin-1") + (_ARGUMENTS[opcode.arg.name] if opcode.arg else b"")


def _with_stack(opcode: pickletools.OpcodeInfo) -> bytes:
    return b"".join(_BEFORE[part.name] for part in opcode.stack_before) + _opcode(opcode)


def _snapshot(value: bytes) -> bytes:
    return HEAD + value + b"u."


def _text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


def _number(value: int) -> bytes:
    octets = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(octets)]) + octets


def _float(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def _deep(open_: bytes, close: bytes, depth: int = MANY) -> bytes:
    return open_ * depth + b"N" + close * depth


def _doubled(rounds: int) -> bytes:
    """A list of two references to the list before, and so on: 2 ** rounds values in a few bytes."""
    return b"]\x94" + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"e\x94" for n in range(rounds))


_EVENT = b"}(" + b"".join(
    _text(key) + value
    for key, value in (
        (b"action", _text(b"alloc")), (b"addr", b"M\0\2"), (b"size", b"M\0\2"), (b"stream", b"K\0"),
        (b"time_us", b"K\1"), (b"frames", b"]"),
    )
) + b"u"  # fmt: skip
_MERSENNE = (1 << 61) - 1  # the modulus of the hash of numbers
_COLLIDING = [_number(number * _MERSENNE) for number in range(1, 30_000)]
_MEMO_GAMES: dict[str, bytes] = {
    "doubled lists": _doubled(200),
    "doubled lists as a key": b"}(" + _doubled(60) + b"Nu",
    "tuples doubled": b")\x94" + b"".join(b"h" + bytes([n]) + b"2\x86\x94" for n in range(200)),
    "tuples doubled as a key": b"}(" + b")\x94" + b"h\x00\x86\x94" * 1 + b"Nu",
    "a list of itself": b"]\x94(" + b"h\0" * MANY + b"e",
    "a dict of itself": b"}\x94(" + b"K\1h\0" * MANY + b"u",
    "memo far away": b"Nr\xff\xff\xff\xff" + b"j\xff\xff\xff\xff",
    "memo in every place": b"N" + b"".join(b"r" + struct.pack("<I", n * 7919) for n in range(MANY)),
    "memo of text by opcode p": b"N" + b"".join(b"p%d\n" % n for n in range(MANY)),
    "a segment repeated": b"]("
    + b"}\x94("
    + _text(b"blocks")
    + b"]("
    + b"}" * 50
    + b"eu"
    + b"h\0" * MANY
    + b"e",
    "an event repeated": b"N" + _text(b"device_traces") + b"](](" + _EVENT + b"\x94" + b"h\0" * MANY + b"ee",
    "a trace repeated": b"N"
    + _text(b"device_traces")
    + b"](]("
    + _EVENT * 100
    + b"e\x94"
    + b"h\0" * MANY
    + b"e",
    "frames repeated": b"N"
    + _text(b"device_traces")
    + b"](](}("
    + _text(b"frames")
    + b"](}\x94("
    + _text(b"name")
    + _text(b"f")
    + b"u"
    + b"h\0" * MANY
    + b"eu"
    + b"ee",
    "devices": b"N" + _text(b"device_traces") + b"](" + (b"](" + _EVENT + b"e") * 2000 + b"e",
}
_SHAPES: dict[str, bytes] = {
    "deep tuple as a key": b"}(" + b")" + b"\x85" * MANY + b"Nu",
    "deep tuple of two as a key": b"}(" + b")" + b"N\x86" * MANY + b"Nu",
    "deep tuple in a set": b"\x8f(" + b")" + b"\x85" * MANY + b"\x90",
    "deep tuple in a frozenset": b"(" + b")" + b"\x85" * MANY + b"\x91",
    "deep lists": b"]" * MANY + b"a" * (MANY - 1),
    "deep dicts": b"}N" * MANY + b"N" + b"s" * MANY,
    "deep lists by mark": _deep(b"](", b"e"),
    "colliding numbers in a dict": b"}(" + b"N".join(_COLLIDING) + b"Nu",
    "colliding numbers in a set": b"\x8f(" + b"".join(_COLLIDING) + b"\x90",
    "colliding floats": b"}(" + b"".join(_float(float(n << 61)) + b"N" for n in range(1, 30_000)) + b"u",
    "not a number as keys": b"}(" + (_float(float("nan")) + b"N") * 30_000 + b"u",
    "-1 and -2 as keys": b"}(" + (b"J\xff\xff\xff\xffNJ\xfe\xff\xff\xffN") * 30_000 + b"u",
    "a frame of exabytes": b"\x95" + b"\xff" * 8 + b"N",
    "frames in frames": b"\x95\x09" + bytes(7) + b"\x95" * 1 + bytes(8) + b"N" + (b"\x95" + bytes(8)) * MANY,
    "a text of exabytes": b"\x8d" + b"\xff" * 7 + b"\x7f",
    "bytes of 4 GB": b"B\xff\xff\xff\xff",
    "a number of 2 GB": b"\x8b\xff\xff\xff\x7f",
    "a number of 4 MB": b"\x8b" + struct.pack("<i", 4 << 20) + b"\x7f" * (4 << 20),
    "a negative number's size": b"\x8b\xff\xff\xff\xff",
    "many long texts": b"](" + (b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)) * 50 + b"e",
    "stops early": b"." * 100,
    "two snapshots": b"Nu." + HEAD + b"N",
}  # fmt: skip


def snapshots() -> Family:
    family: Family = {}
    for opcode in pickletools.opcodes:
        alone, repeated = _with_stack(opcode), _opcode(opcode)
        family[f"{opcode.name} alone"] = partial(_snapshot, alone)
        family[f"{opcode.name} repeated"] = partial(_repeated, alone)
        family[f"{opcode.name} nested"] = partial(_nested, repeated)
    return family | {name: partial(_snapshot, value) for name, value in (_MEMO_GAMES | _SHAPES).items()}


def _repeated(part: bytes) -> bytes:
    return _snapshot(part * MANY)


def _nested(part: bytes) -> bytes:
    return _snapshot(b"](}(K\1" * 1000 + part * 1000 + b"ue" * 1000)


# -- SQLite files with pages exchanged


@cache
def _pages() -> list[bytes]:
    """An export of Nsight Systems with tables of inner pages, indices, overflow and free pages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute(f"pragma page_size = {PAGE_BYTES}")
            file.execute("begin")
            file.execute("create table StringIds (id integer primary key, value text)")
            file.execute(
                "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int,"
                " correlationId int, demangledName int, shortName int)"
            )
            file.execute(
                "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, globalTid int,"
                " correlationId int, nameId int)"
            )
            file.execute(
                "create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int)"
            )
            file.execute("create index by_start on CUPTI_ACTIVITY_KIND_KERNEL (start)")
            file.execute("create unique index by_text on StringIds (value)")
            file.execute("create table gone (x text)")
            rows = range(1500)
            file.executemany("insert into gone values (?)", [("x" * 300,) for _ in range(50)])
            file.executemany(
                "insert into StringIds values (?, ?)", [(n, f"k{n}" * (n % 300)) for n in range(1, 300)]
            )
            file.executemany(
                "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,0,7,?,?,?)",
                [(n * 10, n * 10 + 5, n, n % 200, n % 200) for n in rows],
            )
            file.executemany(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,9,?,?)",
                [(n * 10 - 3, n * 10 - 1, n, n % 200) for n in rows],
            )
            file.executemany(
                "insert into NVTX_EVENTS values (?,?,59,?,9)",
                [(n * 100, n * 100 + 99, "step" * (n * 9)) for n in range(60)],
            )
            file.execute("drop table gone")
            file.execute("commit")
        data = path.read_bytes()
    return [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]


def _exchanged(seed: int) -> bytes:
    """Pages in each other's place, pages twice, and numbers of pages written over."""
    pages, chance = list(_pages()), random.Random(seed)
    for _ in range(chance.choice([1, 3, 30, 300])):
        here, there = chance.sample(range(1, len(pages)), 2)
        pages[here], pages[there] = pages[there], pages[chance.choice([here, there])]
    for _ in range(chance.choice([0, 0, 2, 20])):  # the right child, an overflow page, any cell's
        at, place = (
            chance.randrange(1, len(pages)),
            chance.choice([8, 0, PAGE_BYTES - 4 - chance.randrange(99)]),
        )
        number = struct.pack(">I", chance.randrange(len(pages)))
        pages[at] = pages[at][:place] + number + pages[at][place + 4 :]
    head = bytearray(pages[0])
    if seed % 4 == 3:  # the schema's root has another page's content
        head[100:] = pages[chance.randrange(1, len(pages))][100:]
    return bytes(head) + b"".join(pages[1:])


def databases() -> Family:
    return {f"pages exchanged {seed}": partial(_exchanged, seed) for seed in range(100)}


# -- archives and compressed files

MANIFEST = json.dumps(
    {"format": "stepscope capture", "version": 1, "outcome": "complete", "message": ""}
).encode()
EVENTS = json.dumps(
    [{"ph": "X", "cat": "cpu_op", "name": f"n{n}", "pid": 1, "tid": 1, "ts": n, "dur": 1} for n in range(50)]
).encode()
_MEMBERS = (
    "manifest.json", "modules.json", "contexts.json", "compiled.json", "memory.json", "samples.json",
    "snapshot.pickle", "tables.msgpack", "trace.json", "trace.xplane.pb",
)  # fmt: skip
_END = struct.Struct("<4s4H2LH")  # of central directory


def _zip(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        names = {str(getattr(name, "filename", name)) for name, _ in members}
        for member, content in (("manifest.json", MANIFEST), ("trace.json", EVENTS)):
            if member not in names:
                archive.writestr(member, content)
        for name, content in members:
            archive.writestr(name, content, method)
    return file.getvalue()


def _bomb(member: str, megabytes: int = 200) -> bytes:
    begin = {"snapshot.pickle": HEAD, "tables.msgpack": b"\x80"}.get(member, b"[")
    return _zip((member, begin + b" " * (megabytes << 20)))


def _lying(field: int, size: int, value: int) -> bytes:
    """An archive whose central directory has a value in a field of its entries."""
    data = bytearray(_zip())
    at = data.find(b"PK\1\2")
    while at >= 0:
        data[at + field : at + field + size] = value.to_bytes(size, "little")
        at = data.find(b"PK\1\2", at + 4)
    return bytes(data)


def _lying_end(field: int, value: int) -> bytes:
    data = _zip()
    at = data.rfind(b"PK\5\6")
    values = list(_END.unpack(data[at:]))
    values[field] = value
    return data[:at] + _END.pack(*values)


def _overlapping(copies: int) -> bytes:
    """Entries of the directory that all have the content of one."""
    data = _zip(("memory.json", b" " * (10 << 20)))
    at, end = data.find(b"PK\1\2"), data.rfind(b"PK\5\6")
    directory = data[at:end] * copies
    values = list(_END.unpack(data[end:]))
    values[3] = values[4] = values[4] * copies
    values[5] = len(directory)
    return data[:at] + directory + _END.pack(*values)


def _name(name: str, attributes: int = 0) -> bytes:
    info = zipfile.ZipInfo("x")
    info.filename, info.external_attr = name, attributes
    return _zip((info, b"/etc/passwd"))


def _nested_zip(depth: int) -> bytes:
    data = EVENTS
    for _ in range(depth):
        data = _zip(("trace.json", data))
    return data


def _gzip_of(data: bytes, times: int) -> bytes:
    for _ in range(times):
        data = gzip.compress(data, 1)
    return data


def _zeros(pack: Callable[[bytes], bytes], begin: bytes, megabytes: int = 200) -> bytes:
    return pack(begin + (b" " if begin == b"[" else b"\0") * (megabytes << 20))


def _tar(*names: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "/etc/passwd", 0
            archive.addfile(info)
    data = bytearray(file.getvalue())
    if size:
        data[124:136] = b"%011o\0" % size
    return bytes(data)


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def _frame(descriptor: int, rest: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + rest


def _zip_cases() -> Family:
    family: Family = {f"bomb in {member}": partial(_bomb, member) for member in _MEMBERS}
    for name, field, size in (("crc", 16, 4), ("packed", 20, 4), ("size", 24, 4), ("name", 28, 2),
                              ("extra", 30, 2), ("comment", 32, 2), ("disk", 34, 2), ("offset", 42, 4),
                              ("method", 10, 2), ("flags", 8, 2), ("version", 6, 2)):  # fmt: skip
        family[f"{name} is largest"] = partial(_lying, field, size, (1 << 8 * size) - 1)
        family[f"{name} is one"] = partial(_lying, field, size, 1)
    family["of nothing"] = partial(_lying, 20, 8, 1 << 62)  # packed: no byte; unpacked: a gigabyte
    for name, field in (("entries", 4), ("directory's size", 5), ("directory's offset", 6)):
        family[f"{name} of the end is largest"] = partial(
            _lying_end, field, 0xFFFF if field == 4 else 0xFFFFFFFF
        )
        family[f"{name} of the end is 0"] = partial(_lying_end, field, 0)
    names = (
        "../../etc/passwd", "/etc/passwd", "a\0b", "x" * 65_000, "manifest.json", "trace.json", "trace.json/",
        "\u202egnp.exe", "C:\\x", "\n\n\n", "\x1b[2J",
    )  # fmt: skip
    family |= {f"named {name[:20]!r}": partial(_name, name) for name in names}
    family["a symbolic link"] = partial(_name, "trace.json", 0o120777 << 16)
    family["a device"] = partial(_name, "manifest.json", 0o060777 << 16)
    family |= {f"overlapping {copies}": partial(_overlapping, copies) for copies in (2, 100, 10_000)}
    family |= {f"nested {depth}": partial(_nested_zip, depth) for depth in (1, 2, 20, 200)}
    family["thousands of entries"] = lambda: _zip(*((f"note{n}", b"") for n in range(30_000)))
    family["900 entries"] = lambda: _zip(*((f"n{n}" * 60, b"x") for n in range(900)))
    family["bzip2 in a zip"] = lambda: _zip(("modules.json", b" " * (99 << 20)), method=zipfile.ZIP_BZIP2)
    family["lzma in a zip"] = lambda: _zip(("modules.json", b" " * (99 << 20)), method=zipfile.ZIP_LZMA)
    family["bytes before and after"] = lambda: b"PK" + b"x" * 99_999 + _zip() + b"y" * 70_000
    family["the end alone"] = lambda: b"PK\5\6" + bytes(18)
    family["ends without number"] = lambda: b"PK" + b"PK\5\6" * 500_000
    return family


def _stream_cases() -> Family:
    family: Family = {}
    for name, pack in (("gzip", partial(gzip.compress, compresslevel=1)), ("zstd", _zstd)):
        for kind, begin in (
            ("json", b"["),
            ("sqlite", b"SQLite format 3\0"),
            ("pickle", HEAD),
            ("zip", b"PK\3\4"),
        ):
            family[f"{name} of zeros, {kind}"] = partial(_zeros, pack, begin)
        family[f"{name} cut off"] = lambda pack=pack: pack(EVENTS)[:-40]  # type: ignore[misc]
        family[f"{name} of {name}"] = lambda pack=pack: pack(pack(pack(EVENTS)))  # type: ignore[misc]
        family[f"{name} many times"] = lambda pack=pack: pack(b"[") * MANY  # type: ignore[misc]
        family[f"{name} of nothing many times"] = lambda pack=pack: pack(b"") * MANY  # type: ignore[misc]
        family[f"{name} of an archive"] = lambda pack=pack: pack(_zip())  # type: ignore[misc]
    family["gzip of gzip of zeros"] = lambda: _gzip_of(bytes(100 << 20), 6)
    family["gzip whose size lies"] = lambda: gzip.compress(EVENTS)[:-4] + b"\xff" * 4
    family["gzip with a name without end"] = lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (20 << 20)
    family["gzip with extra fields"] = lambda: b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + b"n" * (1 << 20)
    family["gzip of stored blocks of nothing"] = lambda: (
        b"\x1f\x8b\x08\0" + bytes(6) + b"\0\0\0\xff\xff" * 2_000_000
    )
    family["zstd window of terabytes"] = lambda: _frame(0, b"\xff" + b"\1\0\0[")
    family["zstd that says exabytes"] = lambda: _frame(0xE0, b"\xff" * 8 + b"\1\0\0[")
    family["zstd of skipped frames"] = lambda: (b"\x50\x2a\x4d\x18" + bytes(4)) * MANY + _zstd(EVENTS)
    family["zstd then skipped frames"] = lambda: _zstd(EVENTS) + (b"\x50\x2a\x4d\x18" + bytes(4)) * MANY
    family["zstd of a dictionary"] = lambda: _frame(0x03, b"\x58" + b"\xff" * 4 + b"\1\0\0[")
    family["zstd of repeated bytes"] = lambda: _frame(0, b"\x58" + b"\2\0\x10[" * 20_000)
    family["bzip2"] = lambda: bz2.compress(bytes(10 << 20))
    family["xz"] = lambda: lzma.compress(bytes(10 << 20))
    family["zlib"] = lambda: zlib.compress(EVENTS)
    return family


def _tar_cases() -> Family:
    kinds = {
        "file": tarfile.REGTYPE,
        "link": tarfile.SYMTYPE,
        "hard link": tarfile.LNKTYPE,
        "device": tarfile.BLKTYPE,
    }
    family: Family = {
        f"tar of a {name}": partial(_tar, "trace.json", kind=kind) for name, kind in kinds.items()
    }
    family["tar that says exabytes"] = partial(_tar, "trace.json", size=(1 << 33) - 1)
    family["tar of thousands"] = lambda: _tar(*(f"{n}/../x" for n in range(10_000)))
    family["tar in gzip"] = lambda: gzip.compress(_tar("trace.json"))
    family["tar in zstd"] = lambda: _zstd(_tar("trace.json"))
    family["tar of long names"] = lambda: _tar("x" * 100_000, "{" * 200)
    return family


def archives() -> Family:
    return _zip_cases() | _stream_cases() | _tar_cases()
