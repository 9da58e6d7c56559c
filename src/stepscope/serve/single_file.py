"""The page with its data in one file: what the server would answer, asked beforehand.

The tables come first, then the timeline, the costliest operations first, until the file is as large
as it may be. What is left out is said in the file. Of collected contexts it is flame graphs.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.errors import ServeError
from stepscope.serve import collected
from stepscope.serve.beforehand import flames, tables
from stepscope.serve.bundle import page_in_one
from stepscope.serve.encoding import encode
from stepscope.serve.opened import OpenTrace
from stepscope.serve.report import Report, Told, request_key
from stepscope.serve.walk import Walk
from stepscope.timeline.step_id import StepId
from stepscope.version import __version__

LARGEST_BYTES = 5_000_000
ELEMENT = "stepscope-data"
# Bytes that a raw event takes, packed: of its name and place, and as a slice of a Chrome trace.
# On the ResNet-50 and DDP traces they took 12 and 33.
_NAME_BYTES, _SLICE_BYTES = 24, 40
_WAITING_BYTES = 1 << 16  # what the packer may hold back


def project_files(opened: OpenTrace) -> list[str]:
    """Source files whose text can be read and that belong to no installed package, ascending."""
    sources = opened.sources
    return [
        name
        for name in sorted(sources.names)
        if not sources.is_installed(name) and sources.is_readable(name)
    ]


def single_file(
    report: Report,
    largest: int = LARGEST_BYTES,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """The page with its data, as HTML.

    Args:
        report: what is told.
        largest: bytes that the file may have.
        tell: called with the raw events told of so far and those in all.

    Raises:
        ServeError: if the page is not built, or the tables alone are larger.
    """
    room = (largest - len(page_in_one("").encode())) * 3 // 4
    packed = Packed(room)
    left_out = _fill(packed, report, tell)
    data = b64encode(packed.close(left_out=left_out, traces=_traces(report))).decode()
    # Base64 has no letter that could end the element.
    element = f'<script type="application/octet-stream" id="{ELEMENT}">{data}</script>\n'
    return page_in_one(element)


class Packed:
    """A JSON object in gzip that grows answer by answer up to a size.

    Args:
        room: bytes that it may have.
    """

    def __init__(self, room: int) -> None:
        self._room, self._size, self._comma = room, 0, b""
        self._packer = zlib.compressobj(9, wbits=31)
        self._pieces: list[bytes] = []
        self._write(b'{"answers":{')

    def add(self, *told: Told, reserve: int = 0) -> bool:
        """Write answers, all or none.

        Args:
            told: keys and answers.
            reserve: bytes to be left for what comes later.
        """
        texts = [encode(key) + b":" + encode(value) for key, value in told]
        # Alone, they pack worse than behind others that are alike: so this is never too little.
        needed = len(zlib.compress(b"".join(texts), 1))
        if self._size + needed + reserve + _WAITING_BYTES > self._room:
            return False
        for text in texts:
            self._write(self._comma + text)
            self._comma = b","
        return True

    def close(self, **rest: Any) -> bytes:
        """All of it, with further members beside the answers."""
        self._write(b"}" + b"".join(b"," + encode(k) + b":" + encode(v) for k, v in rest.items()))
        self._write(b"}")
        return b"".join([*self._pieces, self._packer.flush()])

    def _write(self, data: bytes) -> None:
        piece = self._packer.compress(data)
        self._pieces.append(piece)
        self._size += len(piece)

    @property
    def room(self) -> int:
        """Bytes that are left."""
        return self._room - self._size


def _fill(packed: Packed, report: Report, tell: Callable[[int, int], None]) -> list[str]:
    """Write what there is room for; returns what is left out, to be told."""
    if not report.steps:
        _add_all(packed, collected.tables(report))
        return [*collected.fill_with_flames(report, packed.add), *_without_source(report)]
    _add_all(packed, tables(report))
    left_out = _standing(report)
    if not packed.add(*flames(report), reserve=packed.room * 3 // 4):
        left_out.append("the flame graphs")
    walks = [Walk(report, step) for step in report.steps]
    total = sum(len(walk.events) for walk in walks)
    done = 0
    for walk in walks:
        left_out += _timeline(packed, report, walk)
        done += len(walk.events)
        tell(done, total)
    return left_out


def _add_all(packed: Packed, answers: Iterable[Told]) -> None:
    for told in answers:
        if not packed.add(told):
            raise ServeError(f"expected room for all tables of the trace, found none for {told[0]}")


def _timeline(packed: Packed, report: Report, walk: Walk) -> list[str]:
    """Write the timeline of one step, its raw events first if they take a small part."""
    step, left_out = walk.step, []
    if len(walk.events) * _SLICE_BYTES > packed.room // 4 or not packed.add(
        (request_key("trace", path=step), report.ask("trace", path=step))
    ):
        left_out.append(f"the raw events of {_title(step)}")
    reserve = min(len(walk.events) * _NAME_BYTES, packed.room // 3)
    for answers in walk:
        if not packed.add(*answers, reserve=reserve):
            count = f"the {len(walk.unseen) + 1:,} smallest operations"
            left_out.append(f"what is inside {count} of {_title(step)}")
            break
    if not packed.add(walk.names()):
        left_out.append(f"searching in {_title(step)}")
    return left_out


def _standing(report: Report) -> list[str]:
    """What is left out of every file."""
    steps = len(report.opened.timeline.level("", every=True)) - len(report.steps)
    told = ["all but the slowest few instances of each operation"]
    if steps > 0:
        told.append(f"the timelines of {steps} other step{'s' * (steps > 1)}")
    return told + _without_source(report)


def _without_source(report: Report) -> list[str]:
    untold = set(project_files(report.opened)) - set(report.sources)
    return ["the text of the source files"] if untold else []


def _title(step: str) -> str:
    number, rank = StepId.of(step)
    return f"step {number} of rank {rank}"


def _traces(report: Report) -> dict[str, Any]:
    name = report.name
    ready = {"id": name, "name": name, "path": name, "state": "ready", "progress": 1.0,
             "message": ""}  # fmt: skip
    return {"version": __version__, "perfetto": None, "traces": [ready]}
