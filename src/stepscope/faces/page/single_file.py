"""The page with its data in one file: the server's answers, computed in advance.

Tables come first, then the timeline, up to the size limit, the costliest operations first. The file
lists what it leaves out. For collected contexts it holds flame graphs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, takewhile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError, StepscopeError
from stepscope.faces.page import export_answers as export
from stepscope.faces.page.bundle import bytes_element, page_in_one
from stepscope.faces.page.diff_answers import ranks_of
from stepscope.faces.page.export_answers import KeyedAnswer, Report, request_key
from stepscope.faces.page.open_files import TraceEntry, Traces
from stepscope.faces.page.step_answers import details_of_levels, step_of_levels
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.level import Opening
from stepscope.facts.timeline.operation import StepId

MAX_BYTES = 5_000_000  # chosen: small enough to send to somebody
ELEMENT = "stepscope-data"
_MAX_COMPARED = 56  # every pair of eight ranks, both ways
_BOXES_OF_CONTEXTS = (40_000, 10_000, 2_500)  # of each flame graph, tried in this order
# A part of the file may take this share of the room that the parts before it leave.
_LEVELS, _DETAILS, _TRACKS, _OTHERS = 0.7, 0.6, 0.7, 0.25
_END_BYTES = 1 << 16  # for what is left out and the list of traces
_TRIES = 6  # sizes of an answer that are tried; each is compressed
_AT_ONCE = 20_000  # raw events of a step that is opened at once; of more, a sample says how much fits
_SAMPLE = 500  # levels: of fewer, the largest take most of the time to open
_RAW_BYTES = 10  # of a raw event in the file at least; 24 and 33 in traces of a million events and of ResNet
_CAREFULLY = 0.95  # of the room
_WORTH_A_TRY = 1.3  # times as large as what fits
_EFFORT = 5  # of zlib: 6 takes one and a half times as long for 1 to 4 % less
_Sized = Callable[[int], tuple[int, msgspec.Struct]]  # at most so large, and how large
_Make = Callable[[TraceView, str, Sequence[Opening]], msgspec.Struct]


class Embedded(msgspec.Struct):
    """The data of a single file."""

    # by request: its name, then `?` and the parameters that are not empty, in alphabetical order, quoted
    # by `encodeURIComponent`
    answers: dict[str, Any]
    left_out: list[str]  # what is missing; shown at the page's foot
    traces: Traces


class _Grown(NamedTuple):
    """What the archive would be with more in it."""

    compressor: zlib._Compress  # its state then
    piece: bytes  # the bytes to append
    held: int  # how many bytes the compressor holds back


class Archive:
    """An `Embedded` as JSON in gzip that grows answer by answer up to a size."""

    def __init__(self, room: int) -> None:
        self._room, self._size, self._held, self._comma = room, 0, 0, b""
        self._compressor = zlib.compressobj(_EFFORT, wbits=31)
        self._pieces: list[bytes] = []
        self._write(b'{"answers":{')

    @property
    def room(self) -> int:
        return self._room - self._size - self._held

    def reserve(self, share: float) -> int:
        """Bytes to keep free by a part that may take a share of the room that is left."""
        return round(self.room * (1 - share))

    def add(self, *answers: KeyedAnswer, reserve: int = 0) -> bool:
        """Write answers, all or none; returns whether there was room."""
        grown = self._with(*answers)
        if fits := self._share(grown, reserve) <= 1:
            self._become(grown)
        return fits

    def add_all(self, answers: Iterable[KeyedAnswer]) -> None:
        """Write answers that a file must hold."""
        for keyed in answers:
            if not self.add(keyed):
                raise ServeError(
                    f"the tables of the trace exceed the size of a single file (at {keyed[0]}); "
                    "use stepscope view"
                )

    def add_some(self, answers: Iterable[KeyedAnswer], reserve: int) -> int:
        """Write answers one by one while there is room; returns how many."""
        return sum(1 for _ in takewhile(lambda keyed: self.add(keyed, reserve=reserve), answers))

    def add_largest(self, key: str, answer: _Sized, first: int, most: int, reserve: int) -> int:
        """Write one answer, as large as there is room for, tried first of one size; returns how large."""
        size, fits, too_large, best = min(first, most), 0, 2 * most, None
        for _ in range(_TRIES):
            made, value = answer(size)
            grown = self._with((key, value))
            share = self._share(grown, reserve)
            if share <= 1:
                fits, best = made, grown
                if made < size:
                    break
                size = min(most, int(size / share * _CAREFULLY), (fits + too_large) // 2)
            else:
                # Part of an answer may be as large at any size, so the rest shrinks faster.
                too_large = size
                size = (fits + size) // 2 if fits else int(size / max(share, 2.0) / 2)
            if size <= fits * _WORTH_A_TRY:
                break
        if best:
            self._become(best)
        return fits

    def close(self, left_out: list[str], traces: Traces) -> bytes:
        self._write(b'},"left_out":' + json_bytes(left_out) + b',"traces":' + json_bytes(traces) + b"}")
        return b"".join([*self._pieces, self._compressor.flush()])

    def _with(self, *answers: KeyedAnswer) -> _Grown:
        texts = (json_bytes(key) + b":" + json_bytes(value) for key, value in answers)
        compressor = self._compressor.copy()
        piece = compressor.compress(self._comma + b",".join(texts))
        return _Grown(compressor, piece, len(compressor.copy().flush()))

    def _share(self, grown: _Grown, reserve: int) -> float:
        """How much of the room answers take, without what is reserved; above 1 they do not fit."""
        room = self.room - reserve - _END_BYTES
        return (len(grown.piece) + grown.held - self._held) / room if room > 0 else inf

    def _become(self, grown: _Grown) -> None:
        self._compressor, self._held = grown.compressor, grown.held
        self._keep(grown.piece)
        self._comma = b","

    def _write(self, data: bytes) -> None:
        self._keep(self._compressor.compress(data))

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)


def project_files(view: TraceView) -> list[str]:
    """Source files that a report may include: of the folder that the user gave, ascending.

    A trace may come from anyone and name any file of this machine, so without a folder there are
    none. Files of installed packages are left out.
    """
    sources = view.sources
    names = sorted(sources.names) if sources.root is not None else []
    return [name for name in names if not sources.is_installed(name) and sources.is_readable(name)]


def single_file(
    report: Report,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> str:
    """The page with its data, as HTML; raises ServeError if the page is not built, or the tables alone exceed
    the limit."""
    archive = Archive((max_bytes - len(page_in_one("").encode())) * 3 // 4)
    if report.steps:
        left_out = _fill(archive, report, progress)
    elif report.view.has_only_memory:
        if report.compared:
            raise ServeError("a file of memory alone cannot hold a comparison; use: stepscope diff")
        archive.add_all([report.keyed("overview")])
        left_out = add_memory(archive.add, report)
    else:
        archive.add_all(export.tables(report))
        left_out = [*add_contexts(archive.add, report), *_missing_source(report)]
        left_out += _add_others(archive, report)
    return page_in_one(bytes_element(ELEMENT, archive.close(left_out, _traces(report))))


def _fill(archive: Archive, report: Report, progress: Callable[[int, int], None]) -> list[str]:
    """Write the tables of a report, and what else there is room for; returns what is left out."""
    # The panes' choices lead to places all over the first step, so most of it is opened before.
    report.view.timeline.open_all(report.steps[0], _first_tried(report.view, report.steps[0]))
    archive.add_all(export.tables(report))
    left_out = _always_left_out(report)
    if not archive.add(*export.flames(report), reserve=archive.reserve(_OTHERS)):
        left_out.append("the flame graphs")
    archive.add_some(export.arrivals(report), archive.reserve(_OTHERS))
    archive.add_all(export.comparisons_with_others(report))
    left_out += _add_some(archive, export.pairs(report), "steps above the one on screen")
    left_out += _add_others(archive, report) + _add_comparisons(archive, report)
    left_out += add_memory(partial(archive.add, reserve=archive.reserve(_OTHERS)), report)
    for number, step in enumerate(report.steps, 1):
        left_out += add_step(archive, report, step)
        progress(number, len(report.steps))
    return left_out


def add_step(archive: Archive, report: Report, step: str) -> list[str]:
    """Write the timeline of one step as far as there is room; returns what is left out.

    Levels come first, then what is known of their operations, the tracks, and the raw events.
    """
    view, left_out = report.view, list[str]()
    title = "step {} of rank {}".format(*StepId.of(step))
    events = len(view.timeline.raw_events(step))

    def add(request: str, make: _Make, first: int, most: int, share: float) -> int:
        def answer(size: int) -> tuple[int, msgspec.Struct]:
            openings = view.timeline.open_all(step, size)
            return len(openings), make(view, step, openings)

        key = request_key(request, path=step)
        return archive.add_largest(key, answer, first, most, archive.reserve(share))

    levels = add("step", step_of_levels, _first_tried(view, step), events + 1, _LEVELS)
    details = add("step_details", details_of_levels, levels, levels, _DETAILS) if levels else 0
    openings = view.timeline.open_all(step, levels)
    if closed := sum(int((one.every.costs.events > 1).sum()) for one in openings) + 1 - levels:
        left_out.append(f"what is inside {closed:,} small operations of {title}")
    if details < levels:
        left_out.append(f"details of small operations of {title}")
    reserve = archive.reserve(_TRACKS)
    if not all(archive.add(tile, reserve=reserve) for tile in export.axis_tiles(report, step)):
        left_out.append(f"the shortest slices on the tracks of {title}")
    if events * _RAW_BYTES > archive.room or not archive.add(report.keyed("trace", path=step)):
        left_out.append(f"the raw events of {title}")
    return left_out


def _first_tried(view: TraceView, step: str) -> int:
    """How many levels of a step to try first: all, or a sample where they are many."""
    events = len(view.timeline.raw_events(step))
    return events + 1 if events <= _AT_ONCE else _SAMPLE


def _add_comparisons(archive: Archive, report: Report) -> list[str]:
    compared, ranks = islice(export.comparisons(report), _MAX_COMPARED), len(ranks_of(report.view.trace))
    return _add_some(archive, compared, "comparisons of two ranks", ranks * (ranks - 1))


def _add_others(archive: Archive, report: Report) -> list[str]:
    what = "flame graphs compared with another trace"
    return _add_some(archive, export.flames_against_others(report), what)


def _add_some(archive: Archive, answers: Iterable[KeyedAnswer], what: str, number: int = 0) -> list[str]:
    """Add answers while there is room; `number` says how many there are, if that takes no making them."""
    wanted = answers if number else list(answers)
    number = number or len(list(wanted))
    left = number - archive.add_some(wanted, archive.reserve(_OTHERS))
    return [f"{left} of {number} {what}"] if left else []


def add_contexts(add: Callable[..., bool], report: Report) -> list[str]:
    """Add the flame graphs of contexts, as large as possible; returns what is left out."""
    contexts = len(report.view.contexts(None, None))
    for most in _BOXES_OF_CONTEXTS:
        if add(*export.flames_of(report, {}, most)):
            rest = f"all but the {most:,} largest contexts of each flame graph"
            return [rest] if contexts > most else []
    return ["the flame graphs"]


def add_memory(add: Callable[..., bool], report: Report) -> list[str]:
    """Add the memory of what a file covers, with `add` of the archive; returns what is left out."""
    try:
        known = report.ask("memory")
    except StepscopeError:  # nothing was recorded, or that of several ranks
        return []
    peaks = [report.keyed("memory_moment", device=device.id) for device in known.devices]
    if not add(("memory", known), *peaks):
        return ["the memory over time"]
    left_out = ["what lives at most moments of the memory"]
    for device in known.devices:
        for by in (one.by for one in device.groupings):
            if not all(add(tile) for tile in export.memory_tiles(report, device.id, by)):
                left_out.append(f"the shortest changes of {device.id}'s memory by {by}")
        add(*export.memory_moments(report, device.id))
    return left_out


def _always_left_out(report: Report) -> list[str]:
    steps = len(report.view.timeline.level("", every=True)) - len(report.steps)
    left_out = ["all but the slowest few instances of each operation", "statistics of an area"]
    if steps > 0:
        left_out.append(f"the timelines of {steps} other step{'s' * (steps > 1)}")
    return left_out + _missing_source(report)


def _missing_source(report: Report) -> list[str]:
    sources = report.view.sources
    named = {name for name in sources.names if not sources.is_installed(name)}
    which = "other" if report.sources else "the"
    return [f"the text of {which} source files"] if named - set(report.sources) else []


def _traces(report: Report) -> Traces:
    own = TraceEntry(report.name, report.name, report.name, "ready", 1.0, "")
    others = [
        TraceEntry(id, Path(view.trace.metadata.source).name or id, "", "compared", 1.0, "")
        for id, view in report.compared.items()
    ]
    return Traces(None, [own, *others])
