"""The rows of each table of an Nsight Systems export, as columns of events."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Ids32, Integers, Times
from stepscope.errors import IngestError, one_line
from stepscope.read.shared import EventNames, columns_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.sets import Interner

Texts = Sequence[bytes]
_TIMES = ("start", "end")
_WORK = (*_TIMES, "deviceId", "streamId", "correlationId", "globalPid")
_SHAPE = tuple(what + axis for what in ("grid", "block") for axis in "XYZ")
_MEMORY_OF_BLOCK = ("staticSharedMemory", "dynamicSharedMemory")
_CALLED = re.compile(r"(_ptsz|_ptds)?_v\d+$")  # the version of the CUDA API in a call's name
LATEST_NS = 1 << 60  # differences of such times are no overflow
_PROCESS_BITS = 40  # correlation ids are unique in a process only
_RANGES = (59, 60, 70, 71)  # pushed and popped, started and ended, and both again of NVTXT
_COPY_NAMES = "HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP HtoD DtoH DtoD"
_MIGRATIONS = (11, 12, 13)  # CUPTI's driver moves them, and no call
_COPIES = dict(enumerate(_COPY_NAMES.split(), start=1))
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}


class Activities(NamedTuple):
    """Rows as columns of events, all of one length; `name` holds codes, `category` too."""

    start_ns: Times
    end_ns: Times
    track: Ids32
    name: Ids32
    category: Ids32
    correlation: Ids
    sequence: Ids
    forward_thread: Ids
    bytes: Integers
    arguments: Texts


class NsysRecording:
    """What the tables of an export share: the names and tracks of events."""

    def __init__(self, database: "Database") -> None:
        self.database = database
        self.names = EventNames()
        threads = {
            identity: self.strings.get(name, "thread")
            for identity, name in database.cells("ThreadNames", "globalTid", "nameId")
        }
        self.tracks = NsysTracks(threads)
        self.uses_torch = False  # whether an operator of PyTorch was recorded
        self.migrations = 0  # of pages of managed memory, which a kernel waits for
        self.unnamed = 0  # kernels and calls that have no name in the file
        self._processes: Interner[int] = Interner()

    @cached_property
    def strings(self) -> dict[int, str]:
        """The texts that ids stand for."""
        return {id: str(text) for id, text in self.database.cells("StringIds", "id", "value")}

    def named(self, ids: Ids, missing: str, called: Callable[[str], str] = str) -> Ids32:
        """Codes of the names that ids of strings stand for."""
        known, place, count = np.unique(ids, return_inverse=True, return_counts=True)
        self.unnamed += int(count[[id not in self.strings for id in known.tolist()]].sum())
        return self.names.codes([called(self.strings.get(id, missing)) for id in known.tolist()])[place]

    def correlations(self, process: Ids, correlation: Ids) -> Ids:
        """Correlation ids that are unique in the file."""
        known, place = np.unique(process, return_inverse=True)
        offset = self._processes.codes(known.tolist()).astype(np.int64)[place] << _PROCESS_BITS
        return np.where(correlation < 0, -1, correlation + offset)

    @cached_property
    def only_process(self) -> int:
        """The process of work that names none: the first that calls the CUDA API."""
        calls = self.database.integers("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid")["globalTid"]
        return int(process_of(calls[:1]).sum())


def _activities(
    rows: dict[str, Integers], track: Ids32, name: Ids32, category: str | Ids32, **recorded: Any
) -> Activities:
    """Activities without what was not recorded."""
    if isinstance(category, str):
        category = np.full(len(name), CATEGORIES.index(category), np.int32)
    missing = dict.fromkeys(("correlation", "sequence", "forward_thread", "bytes"), np.full(len(name), -1))
    columns: dict[str, Any] = {**missing, "arguments": [b""] * len(name), **recorded}
    return Activities(rows["start"], rows["end"], track, name, category, **columns)


def _work(
    recording: NsysRecording, rows: dict[str, Integers], names: Ids32, category: str | Ids32, **recorded: Any
) -> Activities:
    process = process_of(rows["globalPid"])
    process = np.where(process < 0, recording.only_process, process)
    track = recording.tracks.streams(process, rows["deviceId"], rows["streamId"])
    correlation = recording.correlations(process, rows["correlationId"])
    return _activities(rows, track, names, category, correlation=correlation, **recorded)


def _kernels(recording: NsysRecording, table: str) -> Activities:
    facts = ("demangledName", "shortName", "registersPerThread", *_SHAPE, *_MEMORY_OF_BLOCK)
    rows = recording.database.integers(table, *_WORK, *facts)
    long, short = rows["demangledName"], rows["shortName"]
    names = recording.named(np.where(long >= 0, long, short), "kernel")
    return _work(recording, rows, names, "kernel", **_launch_arguments(rows))


def _launch_arguments(rows: dict[str, Integers]) -> dict[str, list[bytes]]:
    """How kernels were launched, under Kineto's names, if that was recorded."""
    if not len(rows["gridX"]) or rows["gridX"].max() < 0:
        return {}
    shared = sum(np.maximum(rows[name], 0) for name in _MEMORY_OF_BLOCK)
    facts = np.stack([*(rows[name] for name in _SHAPE), rows["registersPerThread"], shared], axis=1)
    known, place = np.unique(facts, axis=0, return_inverse=True)
    texts = [
        msgspec.json.encode(
            {"grid": row[:3], "block": row[3:6], "registers per thread": row[6], "shared memory": row[7]}
        )
        for row in known.tolist()
    ]
    return {"arguments": [texts[row] for row in place.reshape(-1).tolist()]}


def _graphs(recording: NsysRecording, table: str) -> Activities:
    rows = recording.database.integers(table, *_WORK)
    return _work(recording, rows, recording.names.codes(["CUDA graph"] * len(rows["start"])), "kernel")


def _copies(recording: NsysRecording, table: str) -> Activities:
    rows = recording.database.integers(table, *_WORK, "bytes", "copyKind", "srcKind", "dstKind")
    kinds = zip(*(rows[name].tolist() for name in ("copyKind", "srcKind", "dstKind")), strict=True)
    migrates = np.isin(rows["copyKind"], _MIGRATIONS)
    recording.migrations += int(migrates.sum())
    names = recording.names.codes(
        f"Memcpy {_COPIES.get(copy, 'copy')} "
        f"({_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')})"
        for copy, source, target in kinds
    )
    category = np.where(migrates, CATEGORIES.index("annotation"), CATEGORIES.index("memcpy"))
    return _work(recording, rows, names, category.astype(np.int32), bytes=rows["bytes"])


def _fills(recording: NsysRecording, table: str) -> Activities:
    rows = recording.database.integers(table, *_WORK, "bytes", "memKind")
    kinds = (_MEMORY.get(kind, "Unknown") for kind in rows["memKind"].tolist())
    names = recording.names.codes(f"Memset ({kind})" for kind in kinds)
    return _work(recording, rows, names, "memset", bytes=rows["bytes"])


def _calls(recording: NsysRecording, table: str) -> Activities:
    rows = recording.database.integers(table, *_TIMES, "globalTid", "correlationId", "nameId")
    names = recording.named(rows["nameId"], "CUDA call", lambda name: _CALLED.sub("", name))
    track = recording.tracks.threads(rows["globalTid"])
    correlation = recording.correlations(process_of(rows["globalTid"]), rows["correlationId"])
    return _activities(rows, track, names, "runtime", correlation=correlation)


def _system_calls(recording: NsysRecording, table: str) -> Activities:
    """Calls of the operating system by threads that call CUDA, but what CUDA itself calls."""
    rows = recording.database.integers(table, *_TIMES, "globalTid", "nameId")
    cuda = recording.database.integers("CUPTI_ACTIVITY_KIND_RUNTIME", *_TIMES, "globalTid")
    # All threads on one axis, end to end, each as long as there are times.
    length = min(int(max(column.max(initial=0) for column in (rows["start"], cuda["end"]))), LATEST_NS) + 2
    _, thread = np.unique(np.append(rows["globalTid"], cuda["globalTid"]), return_inverse=True)
    here, calling = np.split(thread, [len(rows["start"])])
    start, before = rows["start"] + here * length, calling * length
    calls = Intervals(cuda["start"] + before, cuda["end"] + before)
    kept = np.isin(here, calling) & (calls.within(start, start + 1) == 0)
    rows = {name: column[kept] for name, column in rows.items()}
    names = recording.named(rows["nameId"], "system call")
    return _activities(rows, recording.tracks.threads(rows["globalTid"]), names, "other")


def _ranges(recording: NsysRecording, table: str) -> Activities:
    """NVTX ranges: operators where torch.autograd.profiler.emit_nvtx was on, and the user's."""
    rows = recording.database.integers(table, *_TIMES, "globalTid", "eventType", "textId")
    kept = np.isin(rows["eventType"], _RANGES)
    texts = [*compress(_texts(recording, table, rows["textId"]), kept)]
    parsed = {text: parse(text) for text in set(texts)}  # many ranges may share a long one
    names = [parsed[text] for text in texts]
    rows = {name: column[kept] for name, column in rows.items()}
    categories = np.array([CATEGORIES.index("annotation"), CATEGORIES.index("cpu_op")], np.int32)
    recording.uses_torch |= any(name.name.startswith("aten::") for name in names)
    return _activities(
        rows,
        recording.tracks.threads(rows["globalTid"]),
        recording.names.codes((name.name for name in names), len(names)),
        categories[np.array([name.is_operator for name in names], np.intp)],
        sequence=np.array([name.sequence for name in names], np.int64),
        forward_thread=np.array([1 if name.is_backward else -1 for name in names], np.int64),
        arguments=[name.sizes for name in names],
    )


def _texts(recording: NsysRecording, table: str, ids: Ids) -> list[str]:
    """The text of each range, stored with it or among the strings."""
    stored = [text for (text,) in recording.database.cells(table, "text")] or [None] * len(ids)
    return [
        recording.strings.get(id, "range") if text is None else str(text)
        for text, id in zip(stored, ids.tolist(), strict=True)
    ]


# What each table holds; a table that is missing has no rows.
ACTIVITIES: dict[str, Callable[[NsysRecording, str], Activities]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _kernels,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _graphs,
    "CUPTI_ACTIVITY_KIND_MEMCPY": _copies,
    "CUPTI_ACTIVITY_KIND_MEMSET": _fills,
    "CUPTI_ACTIVITY_KIND_RUNTIME": _calls,
    "OSRT_API": _system_calls,
    "NVTX_EVENTS": _ranges,
}


_BITS = 24  # of the number of a process, and of a thread, in a globalTid
_MASK = (1 << _BITS) - 1  # of either number
_LAST_DEVICE = np.iinfo(np.int32).max  # a damaged file may say any number
_LONGEST_NAME = 256  # letters of a thread; many may share a name


def process_of(identity: Ids) -> Ids:
    """The process in a globalPid or globalTid, -1 where it is unknown.

    Example:
        >>> process_of(np.array([0x1000001000002, -1])).tolist()
        [1, -1]
    """
    return np.where(identity < 0, -1, (identity >> _BITS) & _MASK)


class NsysTracks:
    """Numbers tracks in order of first appearance; `names` are those of threads, by globalTid."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._rows: Interner[tuple[str | int, ...]] = Interner()

    def threads(self, identity: Ids) -> Ids32:
        """The tracks of threads by globalTid, int32, shape (n,)."""
        known, place = np.unique(identity, return_inverse=True)
        return np.array(list(map(self._thread, known.tolist())), np.int32)[place]

    def streams(self, process: Ids, device: Ids, stream: Ids) -> Ids32:
        """The tracks of the streams of processes, int32, shape (n,)."""
        device = np.clip(device, 0, _LAST_DEVICE)
        known, place = np.unique(np.stack([process, device, stream], axis=1), axis=0, return_inverse=True)
        numbers = [self._stream(*key) for key in known.tolist()]
        return np.array(numbers, np.int32)[place.reshape(-1)]

    def columns(self) -> dict[str, Any]:
        """Columns of the tracks table."""
        return columns_of(("kind", "name", "process", "thread", "device", "stream"), list(self._rows))

    def _thread(self, identity: int) -> int:
        process, thread = (identity >> _BITS) & _MASK, identity & _MASK
        name = f"{self._names.get(identity, 'thread')[:_LONGEST_NAME]} {thread}"
        return self._rows["cpu", name, str(process), str(thread), -1, -1]

    def _stream(self, process: int, device: int, stream: int) -> int:
        texts = ("device", f"stream {stream}", f"{process} GPU {device}", str(stream))
        return self._rows[(*texts, device, stream)]


_APPENDED = re.compile(
    r"(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\[\]\d, ]*\]))?(?:, input_op_ids = .*)?$",
    re.DOTALL,
)
_OPERATOR = re.compile(r"(?!FSDP::)[\w.]+::[\w.:]+|[a-z0-9_]+|\w*Backward\d*|autograd::engine::.*")
_BACKWARD = re.compile(r"(autograd::engine::evaluate_function: )?\w*(Backward\d*|AccumulateGrad)")


class NvtxName(NamedTuple):
    """The name of a range."""

    name: str  # without what was appended
    sequence: int  # autograd's sequence number, or -1
    sizes: bytes  # the shapes of the inputs as arguments in JSON, or empty
    is_operator: bool  # whether it is an operator, and not a range of the user's
    is_backward: bool  # whether autograd ran it in backward


def parse(text: str) -> NvtxName:
    """The parts of a range's name.

    Example:
        >>> parse("aten::mm, seq = 5, op_id = 7, sizes = [[2, 3], [3, 4]]")[:3]
        ('aten::mm', 5, b'{"Input Dims":[[2, 3], [3, 4]]}')
        >>> parse("epoch 3, seq").name
        'epoch 3, seq'
    """
    found = _APPENDED.search(text)
    appended = found is not None and bool(found[0])
    name = text[: found.start()] if found else text
    is_backward = appended and bool(_BACKWARD.fullmatch(name))
    return NvtxName(
        name=name,
        sequence=int(found["sequence"]) if found and found["sequence"] else -1,
        sizes=_arguments(found["sizes"]) if found and found["sizes"] else b"",
        is_operator=is_backward or (appended and bool(_OPERATOR.fullmatch(name))),
        is_backward=is_backward,
    )


def _arguments(sizes: str) -> bytes:
    try:
        json.loads(sizes)
    except (ValueError, RecursionError):
        return b""
    return f'{{"Input Dims":{sizes}}}'.encode()


# -- the tables of an SQLite file from anyone: nothing in it runs, and its cells may be of any type
# Only tables with stored rows are read: no view, no virtual table. SQLite is told not to trust the
# file's schema (https://www.sqlite.org/security.html).

_ROWS = 1 << 16  # at a time
_MOST_HEAP = 256 << 20  # bytes that SQLite itself may use; pages and one row at a time
_INSTRUCTIONS = 10_000  # of SQLite's machine, between two looks at how many were run
# All that a file may need: a row of 30 columns takes 40 instructions and 30 bytes, and is read by
# three queries; the schema takes some, too.
_FEW_INSTRUCTIONS, _PER_BYTE = 10_000_000, 10
_ROW_BYTES = 3  # of a page, at least, for each row: its place, its size and its type
_IN_ORDER = "not indexed"  # of rows, which two queries then share: an index with their columns has another
_FEW_LETTERS, _TEXTS = (16 << 20, 4)  # bytes; of a file, of which each text is read once
_CELL = """case typeof("{0}") when 'blob' then null else "{0}" end"""
_INTEGER = """case typeof("{0}") when 'text' then cast(substr("{0}", 1, 20) as integer) when 'blob' then -1
    else coalesce(cast("{0}" as integer), -1) end"""  # longer texts are no 64 bits
_TABLES = "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"


class Database:
    """A file's tables, read-only; a context manager, whose methods raise IngestError if it is damaged."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = self._text
        self._connection.execute("pragma trusted_schema = off")
        self._connection.execute(f"pragma hard_heap_limit = {_MOST_HEAP}")
        self._connection.set_progress_handler(self._is_over, _INSTRUCTIONS)
        self.size = size = path.stat().st_size
        self._instructions = _FEW_INSTRUCTIONS + _PER_BYTE * size
        self._most_rows = size // _ROW_BYTES
        self._letters = _FEW_LETTERS + _TEXTS * size
        names = [str(name) for (name,) in self._rows(_TABLES)]
        self.columns = {name: self._columns_of(name) for name in names}  # by the table's name

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def integers(self, table: str, *names: str) -> dict[str, Integers]:
        """Columns of a table as int64, shape (rows,), -1 where a cell or the column is missing."""
        known = self.columns.get(table, frozenset())
        parts = [_INTEGER.format(name) if name in known else "-1" for name in names]
        batches = [np.zeros((0, len(names)), np.int64)]
        if known:
            rows = self._batches(f'select {", ".join(parts)} from "{table}" {_IN_ORDER}')
            batches += [np.array(batch, np.int64) for batch in rows]
        return dict(zip(names, np.ascontiguousarray(np.concatenate(batches).T), strict=True))

    def cells(self, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
        """The rows of some columns of a table; none if it lacks one of them."""
        if self.columns.get(table, frozenset()).issuperset(names):
            quoted = ", ".join(map(_CELL.format, names))
            for batch in self._batches(f'select {quoted} from "{table}" {_IN_ORDER}'):
                yield from batch

    def _columns_of(self, table: str) -> frozenset[str]:
        sql = "select name from pragma_table_info(?)"
        return frozenset(str(name) for (name,) in self._rows(sql, (table,)))

    def _rows(self, sql: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        return [row for batch in self._batches(sql, values) for row in batch]

    def _text(self, text: bytes) -> str:
        self._letters -= len(text)
        if self._letters < 0:
            raise IngestError("the SQLite database repeats long texts; export the recording again")
        return text.decode("utf-8", "replace")

    def _is_over(self) -> bool:
        """Whether SQLite ran more instructions than the whole file can need: pages form a circle."""
        self._instructions -= _INSTRUCTIONS
        return self._instructions < 0

    def _batches(self, sql: str, values: Sequence[str] = ()) -> Iterator[list[tuple[Any, ...]]]:
        count = 0
        try:
            cursor = self._connection.execute(sql, values)
            while rows := cursor.fetchmany(_ROWS):
                count += len(rows)
                if count > max(self._most_rows, _ROWS):
                    raise IngestError(
                        "the SQLite database is damaged (a table has more rows than the file has room "
                        "for); export the recording again"
                    )
                yield rows
        except (sqlite3.Error, UnicodeError) as error:  # SQLite quotes damaged names in its errors
            raise IngestError(
                f"the SQLite database is damaged ({one_line(error)}); export the recording again"
            ) from error
