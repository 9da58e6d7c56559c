"""Reads the file of a watched run (`base.watch_format`), also while the run writes it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

from stepscope.base import watch_format as layout
from stepscope.base.arrays import Array
from stepscope.base.input_files import open_input
from stepscope.base.typed_data import decode
from stepscope.errors import IngestError

if TYPE_CHECKING:
    from stepscope.trace.redact import Words

_ROW = np.dtype([(name, "<i8") for name in layout.WHOLE] + [(name, "<f4") for name in layout.TIMES])
_DEVICE = np.dtype([(name, "<f8") for name in layout.DEVICE])
_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]  # a sum of two has 64 bits
_SAMPLE = np.dtype([("ns", "<i8"), ("line", "<i2"), ("slept", "<u2")])


class WatchedPlace(msgspec.Struct, frozen=True):
    """A line of the program, and how often and how long it ran after the first step."""

    kind: str  # `evaluation`, `rollout`, `checkpoint`, `compile` or `gc`
    function: str
    file: str
    line: _Whole
    count: _Whole
    total_ns: _Whole


class WatchedRunFacts(msgspec.Struct, frozen=True):
    """Who was watched, how it ended, and at which lines it was."""

    begun_unix_ns: _Whole  # zero of the times of steps
    created_unix_ns: _Whole  # the start of the program
    command: str = ""
    rank: _Whole = 0
    outcome: str = ""  # empty while the run goes on, or if it was killed
    on_device: bool = False  # whether a device does the work
    out_of_memory: str = ""  # the failed allocation and what held the memory
    processes: dict[str, _Whole] = {}  # how many were followed, by role
    worker_starts: dict[str, _Whole] = {}  # of data loaders: `starts`, `starting_ns`, `first_ns` and more
    places: list[WatchedPlace] = []


class SampledLine(NamedTuple):
    """A line that the training thread was seen at, or the main thread of a child."""

    function: str
    file: str
    line: _Whole
    role: str = ""  # of the child


@dataclass(frozen=True)
class WatchedRun:
    """Structured arrays with `watch_format.FIELDS`, in order of steps; times in ns and ms."""

    facts: WatchedRunFacts
    updated_unix_ns: int  # when the file was last written
    totals: Array  # one row with the means over all steps
    steps: Array  # the latest
    device: Array  # with `watch_format.DEVICE`, in any order
    samples: Array  # equally dense: `ns` since the run began, `line`, a position in lines, and if it `slept`
    lines: list[SampledLine]


def read_watched_run(path: str | Path) -> WatchedRun:
    """Read the file as far as it was written; raises IngestError if it is none, or damaged.

    Example:
        >>> read_watched_run("missing.watch")
        Traceback (most recent call last):
        ...
        stepscope.errors.IngestError: cannot read missing.watch: No such file or directory
    """
    try:
        with open_input(path) as file:
            data = file.read(layout.FILE_BYTES)  # a file made to do harm may be longer
    except OSError as error:
        raise IngestError(f"cannot read {path}: {error.strerror}") from None
    if not data.startswith(layout.MAGIC):
        raise IngestError(f"{path} is not the file of a watched run")
    data = data.ljust(layout.FILE_BYTES, b"\0")  # a copy may end early
    count, updated = struct.unpack_from(layout.COUNTERS, data, layout.COUNTERS_AT)
    try:
        facts = decode(max(_slots(data, layout.TEXTS_AT, layout.TEXT_BYTES))[1], WatchedRunFacts)
    except ValueError as error:  # msgspec's are, too
        raise IngestError(f"{path} is damaged: {error}") from None
    numbers = np.arange(max(count - layout.KEPT_STEPS, 0), max(count, 0))
    rows = np.frombuffer(data, _ROW, layout.KEPT_STEPS, layout.STEPS_AT)[numbers % layout.KEPT_STEPS]
    rows = rows[(rows["step"] == numbers) & (rows["wall_ns"] > 0)]  # others were being written
    rows = rows[(rows["begin_ns"] >= 0) & (np.maximum(rows["begin_ns"], rows["wall_ns"]) < 2**62)]
    totals = _plausible(np.frombuffer(data, _ROW, 1, layout.TOTALS_AT))
    return WatchedRun(facts, updated, totals[0], _plausible(rows), _device(data), *_samples(data, path))


def redacted_run(path: str | Path, words: Words) -> bytes:
    """The file of a watched run with its texts replaced; IngestError also if these have no room."""
    run = read_watched_run(path)
    with Path(path).open("rb") as file:
        data = file.read(layout.FILE_BYTES).ljust(layout.FILE_BYTES, b"\0")
    facts = msgspec.json.encode(words.value(run.facts))
    lines = msgspec.json.encode(words.value(run.lines))
    samples = struct.pack("<I", len(lines)) + lines + run.samples.tobytes()
    texts, steps, ends = layout.TEXTS_AT[0], layout.STEPS_AT, layout.SAMPLES_AT[0]
    slots = _slot(facts, steps - texts), _slot(samples, layout.FILE_BYTES - ends)
    return (data[:texts] + slots[0] + data[steps:ends] + slots[1]).rstrip(b"\0")


def _slot(text: bytes, most: int) -> bytes:
    """A text as its first slot, and nothing in the second."""
    slot = struct.pack(layout.TEXT, 1, len(text), zlib.crc32(text)) + text
    if len(slot) > most // 2:
        raise IngestError("the replaced texts are longer than their place in the file")
    return slot.ljust(most, b"\0")


def _plausible(rows: Array) -> Array:
    """The rows with 0 for times that no run has: a file may be damaged."""
    rows = rows.copy()
    for name in layout.TIMES:
        rows[name][~((rows[name] >= 0) & (rows[name] < np.inf))] = 0
    return rows


def _device(data: bytes) -> Array:
    """The rows that were written, without those that no device reports."""
    values = np.frombuffer(data, "<f8", offset=layout.DEVICE_AT).reshape(-1, len(layout.DEVICE))
    rows: Array = values.view(_DEVICE)[:, 0]
    return rows[(values[:, 0] > 0) & ((values >= 0) & (values < 2**53)).all(axis=1)]


def _samples(data: bytes, path: str | Path) -> tuple[Array, list[SampledLine]]:
    """The samples and their lines; none before they were written first."""
    text = max(_slots(data, layout.SAMPLES_AT, layout.SAMPLES_BYTES))[1]
    if not text:
        return np.empty(0, _SAMPLE), []
    try:
        (size,) = struct.unpack_from("<I", text)
        lines = decode(text[4 : 4 + size], list[SampledLine])
        samples = np.frombuffer(text, _SAMPLE, offset=4 + size)
    except (struct.error, ValueError) as error:  # msgspec's are, too
        raise IngestError(f"{path} is damaged: {error}") from None
    return samples[(samples["line"] >= 0) & (samples["line"] < len(lines))], lines


def _slots(data: bytes, offsets: tuple[int, int], most: int) -> Iterator[tuple[int, bytes]]:
    """What is in both slots, by number; empty for one that was being written."""
    for offset in offsets:
        number, size, checksum = struct.unpack_from(layout.TEXT, data, offset)
        begin = offset + struct.calcsize(layout.TEXT)
        text = data[begin : begin + min(size, most)]
        yield (number, text) if zlib.crc32(text) == checksum else (0, b"")
