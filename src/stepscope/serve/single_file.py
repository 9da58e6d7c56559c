"""The page with its data in one file: the server's answers, computed in advance.

Tables come first, then the timeline, the costliest operations first, up to the size limit. The file
lists what it leaves out. For collected contexts it holds flame graphs.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from stepscope.errors import ServeError
from stepscope.serve.bundle import page_in_one
from stepscope.serve.export_axis import step_tiles
from stepscope.serve.export_levels import TimelineExport
from stepscope.serve.export_memory import add_memory
from stepscope.serve.export_request import KeyedAnswer, Report, request_key
from stepscope.serve.export_tables import (
    flames,
    flames_of_contexts,
    tables,
    tables_of_contexts,
)
from stepscope.serve.json_encoding import encode
from stepscope.serve.open_files import TraceEntry, Traces
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.step_id import StepId
from stepscope.version import __version__

MAX_BYTES = 5_000_000
ELEMENT = "stepscope-data"
# Compressed bytes for each raw event: of its name and place, and as a slice of a Chrome trace.
# The ResNet-50 and DDP traces took 12 and 33.
_NAME_BYTES, _SLICE_BYTES = 24, 40
_BUFFERED_BYTES = 1 << 16  # what the compressor may hold back


class Embedded(msgspec.Struct):
    """The data of a single file.

    Attributes:
        answers: by request: its name, then `?` and the parameters that are not empty, in
            alphabetical order, quoted by `encodeURIComponent`.
        left_out: what is missing; shown at the page's foot.
    """

    answers: dict[str, Any]
    left_out: list[str]
    traces: Traces


def project_files(view: TraceView) -> list[str]:
    """Source files that a report may include: of the folder that the user gave, ascending.

    A trace may come from anyone and name any file of this machine, so without a folder there are
    none. Files of installed packages are left out.
    """
    sources = view.sources
    if sources.root is None:
        return []
    return [
        name
        for name in sorted(sources.names)
        if not sources.is_installed(name) and sources.is_readable(name)
    ]


def single_file(
    report: Report,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """The page with its data, as HTML.

    Args:
        report: what the file covers.
        max_bytes: size limit of the file.
        progress: called with the number of raw events exported so far, and of all.

    Raises:
        ServeError: if the page is not built, or the tables alone exceed the limit.
    """
    room = (max_bytes - len(page_in_one("").encode())) * 3 // 4
    archive = Archive(room)
    left_out = _fill(archive, report, progress)
    data = b64encode(archive.close(left_out, _traces(report))).decode()
    # Base64 has no character that could end the element.
    element = f'<script type="application/octet-stream" id="{ELEMENT}">{data}</script>\n'
    return page_in_one(element)


class Archive:
    """An `Embedded` as JSON in gzip that grows answer by answer up to a size.

    Args:
        room: size limit in bytes.
    """

    def __init__(self, room: int) -> None:
        self._room, self._size, self._comma = room, 0, b""
        self._compressor = zlib.compressobj(9, wbits=31)
        self._pieces: list[bytes] = []
        self._write(b'{"answers":{')

    def add(self, *answers: KeyedAnswer, reserve: int = 0) -> bool:
        """Write answers, all or none; returns whether there was room.

        Args:
            answers: keys and answers.
            reserve: bytes to keep free for what comes later.
        """
        texts = [encode(key) + b":" + encode(value) for key, value in answers]
        # An upper bound: after similar answers they compress better than alone.
        needed = len(zlib.compress(b"".join(texts), 1))
        if self._size + needed + reserve + _BUFFERED_BYTES > self._room:
            return False
        for text in texts:
            self._write(self._comma + text)
            self._comma = b","
        return True

    def close(self, left_out: list[str], traces: Traces) -> bytes:
        """All of it."""
        self._write(b'},"left_out":' + encode(left_out) + b',"traces":' + encode(traces) + b"}")
        return b"".join([*self._pieces, self._compressor.flush()])

    def _write(self, data: bytes) -> None:
        piece = self._compressor.compress(data)
        self._pieces.append(piece)
        self._size += len(piece)

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self._room - self._size


def _fill(archive: Archive, report: Report, progress: Callable[[int, int], None]) -> list[str]:
    """Write what there is room for; returns what is left out."""
    if not report.steps:
        _add_all(archive, tables_of_contexts(report))
        return [*add_contexts(archive.add, report), *_missing_source(report)]
    _add_all(archive, tables(report))
    left_out = _always_left_out(report)
    if not archive.add(*flames(report), reserve=archive.room * 3 // 4):
        left_out.append("the flame graphs")
    left_out += add_memory(partial(archive.add, reserve=archive.room * 3 // 4), report)
    exports = [TimelineExport(report, step) for step in report.steps]
    total = sum(len(export.events) for export in exports)
    done = 0
    for export in exports:
        left_out += _add_timeline(archive, report, export)
        done += len(export.events)
        progress(done, total)
    return left_out


def _add_all(archive: Archive, answers: Iterable[KeyedAnswer]) -> None:
    for keyed in answers:
        if not archive.add(keyed):
            raise ServeError(
                f"the tables of the trace exceed the size of a single file (at {keyed[0]}); "
                "use stepscope view"
            )


def add_contexts(add: Callable[..., bool], report: Report) -> list[str]:
    """Add the flame graphs of contexts, as large as possible; returns what is left out.

    Args:
        add: as `Archive.add`.
        report: what the file covers.
    """
    for answers, left_out in flames_of_contexts(report):
        if add(*answers):
            return left_out
    return ["the flame graphs"]


def _add_timeline(archive: Archive, report: Report, export: TimelineExport) -> list[str]:
    """Write the timeline of one step, its raw events first if they take a small part."""
    step, left_out = export.step, []
    if len(export.events) * _SLICE_BYTES > archive.room // 4 or not archive.add(
        (request_key("trace", path=step), report.ask("trace", path=step))
    ):
        left_out.append(f"the raw events of {_title(step)}")
    left_out += _add_axis(archive, report, step)
    reserve = min(len(export.events) * _NAME_BYTES, archive.room // 3)
    for answers in export:
        if not archive.add(*answers, reserve=reserve):
            count = f"the {len(export.pending) + 1:,} smallest operations"
            left_out.append(f"what is inside {count} of {_title(step)}")
            break
    if not archive.add(export.names()):
        left_out.append(f"search in {_title(step)}")
    return left_out


def _add_axis(archive: Archive, report: Report, step: str) -> list[str]:
    """Write the tracks of one step, from coarse to fine, into a third of what is left."""
    reserve = archive.room * 2 // 3
    for keyed in step_tiles(report, step):
        if not archive.add(keyed, reserve=reserve):
            return [f"the shortest slices on the tracks of {_title(step)}"]
    return []


def _always_left_out(report: Report) -> list[str]:
    """What no single file holds."""
    steps = len(report.view.timeline.level("", every=True)) - len(report.steps)
    left_out = [
        "all but the slowest few instances of each operation",
        "statistics of an area",
    ]
    if steps > 0:
        left_out.append(f"the timelines of {steps} other step{'s' * (steps > 1)}")
    return left_out + _missing_source(report)


def _missing_source(report: Report) -> list[str]:
    sources = report.view.sources
    named = {name for name in sources.names if not sources.is_installed(name)}
    missing = named - set(report.sources)
    which = "other" if report.sources else "the"
    return [f"the text of {which} source files"] if missing else []


def _title(step: str) -> str:
    number, rank = StepId.of(step)
    return f"step {number} of rank {rank}"


def _traces(report: Report) -> Traces:
    entry = TraceEntry(report.name, report.name, report.name, "ready", 1.0, "")
    return Traces(__version__, None, [entry])
