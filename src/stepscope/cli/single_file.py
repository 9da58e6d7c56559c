"""`stepscope report --html`: the page with its data, as a file to share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.progress import progress_bar
from stepscope.cli.writing import write_text

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


def write_html(trace: Trace, out: str, rank: int | None, step: int | None, source: bool) -> None:
    """Write the page with the data of one step of a trace, and of that step on the other ranks.

    Args:
        trace: an annotated trace.
        out: the file.
        rank: whose step; by default the rank whose steps take longest.
        step: which; by default the slowest.
        source: put in the text of the project's source files, after saying so.

    Raises:
        ServeError: if it cannot be written.
        TraceError: if there is no such rank or step.
    """
    from stepscope.serve.opened import OpenTrace
    from stepscope.serve.report import report_of
    from stepscope.serve.single_file import project_files, single_file

    opened = OpenTrace(trace)
    files = project_files(opened) if source else []
    if files:
        _warn(files, out)
    report = report_of(opened, rank, step, files)
    with progress_bar(f"writing {out}") as tell:
        text = single_file(report, tell=tell)
    write_text(Path(out), text)


def _warn(files: list[str], out: str) -> None:
    count = f"the text of {len(files)} source file{'s' * (len(files) > 1)}"
    print(f"{out} holds {count}; --no-source leaves it out:", file=sys.stderr)
    for file in files:
        print(f"  {file}", file=sys.stderr)
