"""The page with its data in one file: the server's answers, computed in advance.

Tables come first, then the timeline, up to the size limit, the costliest operations first. The file
lists what it leaves out. For collected contexts it holds flame graphs.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

from stepscope.errors import ServeError
from stepscope.serve.answer_archive import Archive
from stepscope.serve.bundle import page_in_one
from stepscope.serve.diff_answers import ranks_of
from stepscope.serve.export_levels import add_step
from stepscope.serve.export_memory import add_memory
from stepscope.serve.export_request import KeyedAnswer, Report
from stepscope.serve.export_tables import (
    arrivals,
    comparisons,
    comparisons_with_others,
    flames,
    flames_against_others,
    flames_of_contexts,
    tables,
    tables_of_contexts,
)
from stepscope.serve.open_files import TraceEntry, Traces
from stepscope.serve.trace_view import TraceView
from stepscope.version import __version__

MAX_BYTES = 5_000_000
_MAX_COMPARED = 56  # every pair of eight ranks, both ways
ELEMENT = "stepscope-data"


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
