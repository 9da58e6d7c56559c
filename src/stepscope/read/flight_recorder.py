"""Dumps of PyTorch's flight recorder: the last collectives that one rank called.

The form is that of `torch/csrc/distributed/c10d/FlightRecorderDetail.hpp` (versions 2.0 to 2.10), as a
pickle or as JSON, which has no stacks. PyTorch before 2.4 (`TraceUtils.h`) numbers all calls of a group
alike and names no groups; before 2.3 a dump is the list of its entries.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Integers
from stepscope.base.input_files import content_of, open_input
from stepscope.base.typed_data import convert
from stepscope.errors import IngestError
from stepscope.read.memory_snapshot.safe_pickle import load
from stepscope.read.rank_folder import named_rank
from stepscope.read.shared import MOST_LEVELS, MOST_RANKS
from stepscope.read.unsupported import PICKLE, is_dump_head

if TYPE_CHECKING:
    from stepscope.trace.redact import Words

_MOST_DIMENSIONS = 64  # of a tensor: the product of more takes thousands of digits
_HEAD_BYTES = 1 << 12  # hold the first entry, or the groups
_MOST_VALUES = 8_000_000  # of a dump, 50 bytes each; 400 for each of 20,000 calls, where PyTorch keeps 2,000
_Number = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]
_Count = Annotated[int, msgspec.Meta(ge=-(2**52), lt=2**52)]  # of calls, or of µs since 1970
_LIBRARY = re.compile(
    r"(^|/)(site-packages|dist-packages|lib/python3[^/]*|torch/[a-z_]+)/|^[<?]|\.(cpp|h|cc)$"
)
_PEERS = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})")
# Sizes differ among ranks on purpose, or there are none.
_UNEVEN = re.compile(r"all_?to_?all|_v(_|$)|barrier|split|window|coalesced$")
_ALIKE_OUTPUT = re.compile(r"all_?gather|broadcast|^scatter")  # of all others the input is alike
COLUMNS = (
    "group",  # row of `groups`
    "sequence",  # of the group's collectives, from 1 unless the group is in `drifting`
    "operation",  # row of `operations`
    "place",  # row of `places`
    "peer",  # the other rank of a send or recv, -1 for collectives
    "is_send",
    "is_done",
    "is_timed_out",
    "created_ns",  # since 1970
    "timeout_ms",
)


class Group(NamedTuple):
    """A process group as a rank lists it; `members`, sorted, is empty if the dump does not list them."""

    name: str
    description: str
    members: tuple[int, ...]


class LoggedOperation(NamedTuple):
    """What is called, and the elements that every rank must give alike, such as `1,024 Float`."""

    name: str
    sizes: str


@dataclass(frozen=True)
class RankDump:
    """The calls of a rank, oldest first."""

    rank: int
    written_ns: int  # when the file was last written
    groups: tuple[Group, ...]
    operations: tuple[LoggedOperation, ...]
    places: tuple[str, ...]  # `file:line (function)` in the user's code; the first is empty
    # Rows of groups whose numbers are those of this rank alone, since batches of messages that the
    # buffer has lost took some.
    drifting: tuple[int, ...]
    is_of_gloo: bool  # which records collectives alone
    calls: dict[str, Integers]  # the columns that `COLUMNS` explains


_NO_GROUP = ("", "")  # of an entry before PyTorch 2.4


class _Frame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _Entry(msgspec.Struct):
    profiling_name: str
    process_group: tuple[str, str] = _NO_GROUP
    collective_seq_id: _Count = 0
    p2p_seq_id: _Number = 0
    is_p2p: bool = False
    input_sizes: list[list[_Number]] = []
    output_sizes: list[list[_Number]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    state: str = "scheduled"
    retired: bool = False
    time_created_ns: _Number = 0
    timeout_ms: _Number = 0
    frames: list[_Frame] = []
    # Before PyTorch 2.4.
    pg_id: _Number = 0
    seq_id: _Count | None = None
    time_created_us: _Count = 0

    def __post_init__(self) -> None:
        if self.process_group is not _NO_GROUP:
            return
        if self.seq_id is None:
            raise ValueError("an entry without `process_group`")
        # Each rank counts its groups for itself.
        what = f"group {self.pg_id} of each rank (PyTorch before 2.4 does not say which ranks are in it)"
        self.process_group = str(self.pg_id), what if self.pg_id else "default_pg"
        self.time_created_ns = self.time_created_ns or 1000 * self.time_created_us
        self.is_p2p = self.is_p2p or _PEERS.search(self.profiling_name) is not None
        self.collective_seq_id, self.p2p_seq_id = self.seq_id, self.time_created_ns

    @property
    def key(self) -> tuple[bool, int]:
        """Its number in its group: the parts of a coalesced call share it."""
        return self.is_p2p, self.p2p_seq_id if self.is_p2p else self.collective_seq_id

    @property
    def ends_parts(self) -> bool:
        """Whether it ends a coalesced call."""
        return self.profiling_name.endswith(":coalesced")

    @property
    def state_codes(self) -> tuple[int, int]:
        """Done, timed out. Gloo's entries stay `scheduled`, and retire when they are done."""
        is_done = self.state == "completed" or (self.retired and self.profiling_name.startswith("gloo:"))
        return int(is_done), int(self.retired and not is_done)


_Call = tuple[_Entry, LoggedOperation, int]  # and the other rank of a send or recv, else -1


class _Config(msgspec.Struct):
    desc: str = ""
    ranks: str | list[_Number] = ""


class _Dump(msgspec.Struct):
    version: str
    pg_config: dict[str, _Config] = {}
    entries: list[_Entry] = []


def is_dump(path: Path) -> bool:
    """Whether a file's first bytes are those of a dump; False if it cannot be read."""
    try:
        with open_input(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return is_dump_head(head) and head.startswith((*PICKLE, b"{", b"["))


def read_dump(path: Path) -> RankDump:
    """The dump in a file, of the rank that its name ends with; IngestError if it is none, or says none."""
    dump = _dump(path)
    last, rank = re.search(r"(\d{1,8})(\.\w+)*$", path.name), named_rank(path)
    if rank is None and last is None:
        raise IngestError(f"{path}: the name of a dump ends with its rank, such as nccl_trace_rank_0")
    return _rank_dump(dump, int(last[1]) if rank is None and last else rank or 0, path.stat().st_mtime_ns)


def _dump(path: Path) -> _Dump:
    try:
        text = content_of(path)
        data = load(text) if text.startswith(PICKLE) else json.loads(text)
        _check_repeats(data)
        return convert({"version": "", "entries": data} if isinstance(data, list) else data, _Dump)
    except OSError as error:
        raise IngestError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, msgspec.ValidationError, IngestError) as error:
        raise IngestError(f"{path}: not a dump of the flight recorder: {error}") from error


def _check_repeats(data: Any) -> None:
    """Raise ValueError if lists that a pickle repeats by reference would take too much as copies."""
    level, total = {0: ([data], 1)}, 0
    for _ in range(MOST_LEVELS):
        below = dict[int, tuple[Any, int]]()
        for value, times in level.values():
            for item in value.values() if isinstance(value, dict) else value:
                total += times
                if isinstance(item, dict | list | tuple):
                    below[id(item)] = item, times + below.get(id(item), (item, 0))[1]
        level = below
    if level or total > _MOST_VALUES:
        raise ValueError(f"it nests too deeply, or holds more than {_MOST_VALUES:,} values")


def redacted_dump(path: Path, words: Words) -> bytes:
    """The dump in a file as JSON, with what `read_dump` reads of it and its texts replaced."""
    return msgspec.json.encode(words.value(_dump(path)))


def _rank_dump(dump: _Dump, rank: int, written_ns: int) -> RankDump:
    groups = {name: Group(name, known.desc, _members(known.ranks)) for name, known in dump.pg_config.items()}
    of_group: dict[str, list[_Entry]] = {}
    for entry in dump.entries:
        of_group.setdefault(entry.process_group[0], []).append(entry)
        groups.setdefault(entry.process_group[0], Group(*entry.process_group, ()))
    operations: dict[LoggedOperation, int] = {}
    places, codes = {"": 0}, {name: code for code, name in enumerate(groups)}
    rows, drifting = [], []
    for name, entries in of_group.items():
        taken, is_whole = _taken_by_messages(entries)
        drifting += [codes[name]] if taken and not is_whole else []
        for parts in _calls(entries):
            is_p2p, number = parts[0].key
            number -= bisect(taken, number)
            calls = _messages(parts, groups[name]) if is_p2p else _collective(parts)
            for entry, operation, peer in calls:
                code = operations.setdefault(operation, len(operations))
                place = places.setdefault(_place(entry.frames), len(places))
                row = (codes[name], 0 if is_p2p else number, code, place, peer, int(operation.name == "send"))
                # Of the parts of a coalesced call the last alone knows the state.
                rows.append((*row, *parts[-1].state_codes, entry.time_created_ns, entry.timeout_ms))
    rows.sort(key=lambda row: row[COLUMNS.index("created_ns")])
    columns = dict(zip(COLUMNS, np.array(rows, np.int64).reshape(-1, len(COLUMNS)).T, strict=True))
    texts = tuple(groups.values()), tuple(operations), tuple(places)
    is_of_gloo = any(entry.profiling_name.startswith("gloo:") for entry in dump.entries)
    return RankDump(rank, written_ns, *texts, tuple(drifting), is_of_gloo, columns)


def _taken_by_messages(entries: list[_Entry]) -> tuple[list[int], bool]:
    """Numbers of a group's collectives that batches of messages took, and whether these are all.

    A batch takes one on its own ranks alone (`ProcessGroupNCCL::startCoalescing`), unlike a collective.
    """
    collectives = {entry.collective_seq_id for entry in entries if not entry.is_p2p}
    numbers = {entry.collective_seq_id for entry in entries} - {0}
    is_whole = min(numbers, default=1) == 1
    first = 0 if is_whole else min(collectives, default=0)
    return sorted(number for number in numbers - collectives if number > first), is_whole


def _calls(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Each call with the parts of a coalesced one; batches one after the other may share a number."""
    for _, same in groupby(entries, lambda entry: entry.key):
        parts = list(same)
        ends = [at + 1 for at, part in enumerate(parts[:-1]) if part.ends_parts]
        yield from (parts[first:end] for first, end in pairwise([0, *ends, len(parts)]))


def _collective(parts: list[_Entry]) -> Iterator[_Call]:
    calls = [part for part in parts if not part.ends_parts] or parts
    operations = [_operation(call) for call in calls]
    names = " + ".join(dict.fromkeys(operation.name for operation in operations))
    sizes = " + ".join(operation.sizes for operation in operations if operation.sizes)
    yield calls[0], LoggedOperation(names, sizes), -1


def _messages(parts: list[_Entry], group: Group) -> Iterator[_Call]:
    for part in parts:
        if match := _PEERS.search(part.profiling_name):
            peer = int(match[3])  # within the group
            peer = group.members[peer] if peer < len(group.members) else peer
            yield part, _operation(part, match[1]), peer


def _members(ranks: str | list[int]) -> tuple[int, ...]:
    numbers = re.findall(r"\d{1,8}", ranks) if isinstance(ranks, str) else ranks
    return tuple(sorted({rank for rank in map(int, numbers) if 0 <= rank < MOST_RANKS}))


def _operation(entry: _Entry, name: str = "") -> LoggedOperation:
    name = name or entry.profiling_name.partition(":")[2] or entry.profiling_name
    if _UNEVEN.search(name):
        return LoggedOperation(name, "")
    sides = [(entry.input_sizes, entry.input_dtypes), (entry.output_sizes, entry.output_dtypes)]
    if _ALIKE_OUTPUT.search(name):
        sides.reverse()
    sizes, kinds = next((side for side in sides if side[0]), ([], []))
    # Shapes may differ where their number of elements does not.
    count = sum(math.prod(size[:_MOST_DIMENSIONS]) for size in sizes)
    return LoggedOperation(name, f"{count:,} {'/'.join(dict.fromkeys(kinds))}".rstrip() if sizes else "")


def _place(frames: list[_Frame]) -> str:
    """The innermost frame of the user's code; of a library's if there is none."""
    of_user = (frame for frame in frames if not _LIBRARY.search(frame.filename))
    frame = next(of_user, None) or next((frame for frame in frames if frame.filename.endswith(".py")), None)
    return f"{frame.filename}:{frame.line} ({frame.name})" if frame else ""
