"""`stepscope report --html`: the page with its data, as a file to share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.output_files import write_text
from stepscope.cli.progress import progress_bar

if TYPE_CHECKING:
    from stepscope.serve.trace_view import TraceView
    from stepscope.trace.trace import Trace


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """Everything made here is kept until the end, so looking for garbage is in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_without_cycle_search()
def write_html(
    trace: Trace,
    out: str,
    rank: int | None,
    step: int | None,
    source_root: Path | None,
    whatifs: Sequence[str] = (),
    compared: Sequence[Trace] = (),
) -> None:
    """Write the page with the data of one step of a trace, and of that step on the other ranks.

    Args:
        trace: an annotated trace.
        out: the file.
        rank: whose step; by default the rank whose steps take longest.
        step: which; by default the slowest.
        source_root: include the text of the trace's source files in this folder, and list them.
        whatifs: predictions to include: changes separated by spaces, as on the command line.
        compared: other traces to compare it with.

    Raises:
        ChangeError: if a change does not apply.
        ServeError: if it cannot be written.
        TraceError: if there is no such rank or step.
    """
    from stepscope.serve.export_answers import report_of
    from stepscope.serve.single_file import project_files, single_file
    from stepscope.serve.trace_view import TraceView

    others = _others(trace, compared)
    view = TraceView(trace, lambda id: others[id].trace, source_root)
    files = project_files(view)
    if files:
        _list_included(files, out)
    asked = ["\n".join(changes.split()) for changes in whatifs]
    report = replace(report_of(view, rank, step, files), whatifs=asked, compared=others)
    with progress_bar(f"writing {out}") as progress:
        text = single_file(report, progress=progress)
    write_text(Path(out), text)


def _others(trace: Trace, compared: Sequence[Trace]) -> dict[str, TraceView]:
    """Other traces by the ids that the page asks for."""
    from stepscope.serve.open_files import trace_ids
    from stepscope.serve.trace_view import TraceView

    names = [Path(one.metadata.source).name for one in (trace, *compared)]
    return {id: TraceView(one) for id, one in zip(trace_ids(names)[1:], compared, strict=True)}


def _list_included(files: list[str], out: str) -> None:
    count = f"{len(files)} source file{'s' * (len(files) > 1)}"
    print(f"{out} includes the text of {count}:", file=sys.stderr)
    for file in files:
        print(f"  {file}", file=sys.stderr)
