"""What a single file tells of collected contexts: no step and no timeline, flame graphs and source.

They are of a whole run and bounded in size, so all measures are told, with as many boxes as there
is room for. The page cannot ask for more of them, as it asks the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stepscope.contexts import build_contexts
from stepscope.serve.beforehand import flames_by, sources
from stepscope.serve.report import Report, Told

_BOXES = (40_000, 10_000, 2_500)


def tables(report: Report) -> Iterator[Told]:
    """Overview, findings and sources."""
    yield "overview", report.ask("overview")
    yield "findings", report.ask("findings")
    yield from sources(report)


def fill_with_flames(report: Report, add: Callable[..., bool]) -> list[str]:
    """Add the flame graphs, as large as they may be; returns what is left out, to be told.

    Args:
        report: what the file is about.
        add: takes answers, all or none, and says whether there was room.
    """
    contexts = len(build_contexts(report.opened.trace))
    for most in _BOXES:
        if add(*flames_by(report, {}, most)):
            told = f"all but the {most:,} largest contexts of each flame graph"
            return [told] if contexts > most else []
    return ["the flame graphs"]
