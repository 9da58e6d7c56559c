"""Reports of files that were reported before: shown again without opening the trace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.options import TraceFile, ranks_without_steps
from stepscope.summary.facts import Summary

if TYPE_CHECKING:
    from stepscope.trace.cache import Key

_PACKAGES = ("roofline", "summary")  # what makes a report of a trace


@dataclass(frozen=True)
class Report:
    """The facts of a report, by rank, and the ranks that have no recorded step."""

    summaries: list[Summary]
    ranks_without_steps: list[int]


def report_of(file: TraceFile, rank: int | None, step: int | None) -> Report:
    """The report of a file, from the cache if it was made before.

    Args:
        file: the file and how to open it.
        rank: one rank; by default all that have steps.
        step: one step; by default the mean over all.

    Raises:
        StepscopeError: if the file cannot be read, or has no such rank or step.
    """
    key = _key(file, rank, step)
    found = _fetch(key, file.path) if key else None
    if found is None:
        found = _made(file, rank, step)
        if key and key == _key(file, rank, step):  # else the file changed while it was read
            _keep(key, found)
    return found


def _made(file: TraceFile, rank: int | None, step: int | None) -> Report:
    from stepscope.annotate.steps.steps import ranks_with_steps
    from stepscope.summary.report_facts import summarize

    trace = file.open()
    ranks = ranks_with_steps(trace) if rank is None else (rank,)
    return Report([summarize(trace, one, step) for one in ranks], ranks_without_steps(trace))


def _key(file: TraceFile, rank: int | None, step: int | None) -> Key | None:
    from stepscope.load import key_of_text

    if not file.cache:
        return None
    what = ("report", rank, step)
    return key_of_text(Path(file.path), file.model, file.as_recorded, what, _PACKAGES)


def _fetch(key: Key, source: str) -> Report | None:
    import msgspec

    from stepscope.trace.cache import fetch_text

    if (text := fetch_text(key)) is None:
        return None
    try:
        found = msgspec.json.decode(text, type=Report)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return replace(found, summaries=[replace(one, source=source) for one in found.summaries])


def _keep(key: Key, report: Report) -> None:
    """Keep a report, but not one that JSON cannot hold: a number that is not finite."""
    import msgspec

    from stepscope.trace.cache import keep_text

    try:
        text = msgspec.json.encode(report)
        whole = msgspec.json.decode(text, type=Report) == report
    except (msgspec.MsgspecError, TypeError, RecursionError):
        return
    if whole:
        keep_text(key, text)
