"""The page with its data in one file: the server's answers, computed in advance.

Tables come first, then the timeline, up to the size limit, the costliest operations first. The file
lists what it leaves out. For collected contexts it holds flame graphs.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stepscope.errors import ServeError, StepscopeError
from stepscope.serve.answer_archive import Archive
from stepscope.serve.bundle import page_in_one
from stepscope.serve.diff_answers import ranks_of
from stepscope.serve.export_answers import (
    KeyedAnswer,
    Report,
    arrivals,
    comparisons,
    comparisons_with_others,
    flames,
    flames_against_others,
    flames_of_contexts,
    request_key,
    tables,
    tables_of_contexts,
)
from stepscope.serve.memory_answers import MemoryDevice
from stepscope.serve.open_files import TraceEntry, Traces
from stepscope.serve.step_answers import by_cost, details_of_levels, step_of_levels
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.level import Opening
from stepscope.timeline.operation import StepId
from stepscope.version import __version__

# A part may take this share of the room that is left, the tracks what the parts before them leave.
_LEVELS, _DETAILS, _TRACKS = 0.7, 0.6, 0.7
Make = Callable[[TraceView, str, Sequence[Opening]], msgspec.Struct]
_REQUESTS = {"track": "slices", "counter": "counter"}
_MOMENTS = 60
_ROWS = 40
MAX_BYTES = 5_000_000
_MAX_COMPARED = 56  # every pair of eight ranks, both ways
ELEMENT = "stepscope-data"


def add_step(archive: Archive, report: Report, step: str) -> list[str]:
    """Write the timeline of one step as far as there is room; returns what is left out.

    Levels come first, then what is known of their operations, the tracks, and the raw events.
    """
    view, title, left_out = report.view, _title(step), list[str]()
    openings = view.timeline.open_all(step)
    costliest = by_cost(openings)

    def add(request: str, make: Make, share: float) -> int:
        def answer(most: int) -> msgspec.Struct:
            return make(view, step, [openings[row] for row in sorted(costliest[:most])])

        reserve = round(archive.room * (1 - share))
        key = request_key(request, path=step)
        return archive.add_largest(key, answer, len(openings), reserve)

    levels = add("step", step_of_levels, _LEVELS)
    details = add("step_details", details_of_levels, _DETAILS)
    if levels < len(openings):
        left_out.append(f"what is inside {len(openings) - levels:,} small operations of {title}")
    if details < levels:
        left_out.append(f"details of small operations of {title}")
    reserve = round(archive.room * (1 - _TRACKS))
    if not all(archive.add(tile, reserve=reserve) for tile in step_tiles(report, step)):
        left_out.append(f"the shortest slices on the tracks of {title}")
    if not archive.add((request_key("trace", path=step), report.ask("trace", path=step))):
        left_out.append(f"the raw events of {title}")
    return left_out


def _title(step: str) -> str:
    number, rank = StepId.of(step)
    return f"step {number} of rank {rank}"


def step_tiles(report: Report, step: str) -> Iterator[KeyedAnswer]:
    """The answers about each tile that shows a part of a step, zoom by zoom.

    A tile inside an exact one shows nothing more, so none is listed.

    Args:
        report: what the file covers.
        step: path of the step.
    """
    axis, (_, rank) = report.view.time_axis, StepId.of(step)
    level = report.view.timeline.level(step)
    start, end = level.start_ns, level.reach_ns
    open_tiles = [("track", id, 0) for id, one in axis.tracks.items() if one.rank == rank]
    open_tiles += [("counter", id, 0) for id, one in axis.counters.items() if one.rank == rank]
    for zoom in range(axis.deepest + 1):
        length, inner = axis.tile_ns >> (zoom + 1), []
        for kind, id, tile in open_tiles:
            query = {kind: id, "zoom": str(zoom), "tile": str(tile)}
            answer = report.ask(_REQUESTS[kind], **query)
            yield request_key(_REQUESTS[kind], **query), answer
            if not answer.exact:
                inner += [
                    (kind, id, part)
                    for part in (2 * tile, 2 * tile + 1)
                    if part * length < end and (part + 1) * length > start
                ]
        open_tiles = inner


def add_memory(add: Callable[..., bool], report: Report) -> list[str]:
    """Add the memory of the steps that a file covers, or all; returns what is left out.

    Args:
        add: takes keyed answers and writes all of them, or none and returns false.
        report: what the file covers.
    """
    try:
        known = report.ask("memory")
    except StepscopeError:  # nothing was recorded, or that of several ranks
        return []
    if not add(("memory", known), *_verdicts(report, known.devices)):
        return ["the memory over time"]
    left_out = ["what lives at most moments of the memory"]
    for device in known.devices:
        for by in (one.by for one in device.groupings):
            if not all(add(tile) for tile in _tiles(report, device.id, by, known.tile_ns)):
                left_out.append(f"the shortest changes of {device.id}'s memory by {by}")
        add(*_moments(report, device))
    return left_out


def _verdicts(report: Report, devices: list[MemoryDevice]) -> Iterator[KeyedAnswer]:
    for device in devices:
        for request in ("memory_verdict", "memory_moment"):
            key = request_key(request, device=device.id)
            yield key, report.ask(request, device=device.id)


def _tiles(report: Report, device: str, by: str, tile_ns: int) -> Iterator[KeyedAnswer]:
    """The tiles that show a part of the extent, zoom by zoom, none inside an exact one."""
    start, end = _extent(report)
    zoom, tiles = 0, [0]
    while tiles:
        length, inner = tile_ns >> (zoom + 1), []
        for tile in tiles:
            query = {"device": device, "by": by, "zoom": str(zoom), "tile": str(tile)}
            answer = report.ask("memory_tile", **query)
            yield request_key("memory_tile", **query), answer
            if not answer.exact:
                inner += [part for part in (2 * tile, 2 * tile + 1)
                          if part * length < end and (part + 1) * length > start]  # fmt: skip
        zoom, tiles = zoom + 1, inner


def _moments(report: Report, device: MemoryDevice) -> Iterator[KeyedAnswer]:
    """What lives at moments evenly spread over the extent, the largest of it."""
    start, end = _extent(report)
    for number in range(_MOMENTS):
        time = str(start + (end - start) * number // _MOMENTS)
        found = report.ask("memory_moment", device=device.id, time=time)
        key = request_key("memory_moment", device=device.id, time=time)
        yield key, replace(found, living=found.living[:_ROWS])


def _extent(report: Report) -> tuple[int, int]:
    """Start and end of what the file covers, ns since the trace's start."""
    if not report.steps:
        return 0, report.ask("memory").end_ns
    level = report.view.timeline.level(report.steps[0])
    return level.start_ns, level.reach_ns


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
        progress: called with the number of steps exported so far, and of all.

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


def _fill(archive: Archive, report: Report, progress: Callable[[int, int], None]) -> list[str]:
    """Write what there is room for; returns what is left out."""
    if not report.steps and report.view.has_only_memory:
        if report.compared:
            raise ServeError("a file of memory alone cannot hold a comparison; use: stepscope diff")
        _add_all(archive, [("overview", report.ask("overview"))])
        return add_memory(archive.add, report)
    if not report.steps:
        _add_all(archive, tables_of_contexts(report))
        left_out = [*add_contexts(archive.add, report), *_missing_source(report)]
        return left_out + _add_others(archive, flames_against_others(report))
    # The panes' choices lead to places all over the first step, so it is opened as a whole before.
    report.view.timeline.open_all(report.steps[0])
    _add_all(archive, tables(report))
    left_out = _always_left_out(report)
    if not archive.add(*flames(report), reserve=archive.room * 3 // 4):
        left_out.append("the flame graphs")
    _add_some(archive, arrivals(report))
    _add_all(archive, comparisons_with_others(report))
    left_out += _add_others(archive, flames_against_others(report))
    left_out += _add_comparisons(archive, report)
    left_out += add_memory(partial(archive.add, reserve=archive.room * 3 // 4), report)
    for number, step in enumerate(report.steps, 1):
        left_out += add_step(archive, report, step)
        progress(number, len(report.steps))
    return left_out


def _add_all(archive: Archive, answers: Iterable[KeyedAnswer]) -> None:
    for keyed in answers:
        if not archive.add(keyed):
            raise ServeError(
                f"the tables of the trace exceed the size of a single file (at {keyed[0]}); "
                "use stepscope view"
            )


def _add_comparisons(archive: Archive, report: Report) -> list[str]:
    """Add ranks compared with each other while there is room; returns what is left out."""
    added = _add_some(archive, islice(comparisons(report), _MAX_COMPARED))
    ranks = len(ranks_of(report.view.trace))
    left = ranks * (ranks - 1) - added
    return [f"{left} of {left + added} comparisons of two ranks"] if left else []


def _add_others(archive: Archive, flames: Iterator[KeyedAnswer]) -> list[str]:
    """Add flame graphs of other traces while there is room; returns what is left out."""
    answers = list(flames)
    added = _add_some(archive, answers)
    return ["some flame graphs compared with another trace"] if added < len(answers) else []


def _add_some(archive: Archive, answers: Iterable[KeyedAnswer]) -> int:
    """Add answers until they take a quarter of the room; returns how many."""
    reserve = archive.room * 3 // 4
    return sum(1 for _ in takewhile(lambda one: archive.add(one, reserve=reserve), answers))


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


def _traces(report: Report) -> Traces:
    name = report.name
    others = [
        TraceEntry(id, Path(view.trace.metadata.source).name, "", "compared", 1.0, "")
        for id, view in report.compared.items()
    ]
    return Traces(__version__, None, [TraceEntry(name, name, name, "ready", 1.0, ""), *others])
