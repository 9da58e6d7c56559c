"""`stepscope report`: show where the time of a training step goes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.json_output import echo_json
from stepscope.cli.many_ranks import focused
from stepscope.cli.memory import show_memory
from stepscope.cli.options import OnlyMemory, TraceFile, say_ranks_without_steps, takes_file
from stepscope.cli.output_files import write_text
from stepscope.cli.path_options import NamedPath, OutputFile
from stepscope.cli.terminal import terminal

if TYPE_CHECKING:
    from stepscope.cli.kept_report import KeptReport
    from stepscope.trace.trace import Trace


@click.command()
@takes_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--svg", metavar="OUT", type=OutputFile(),
              help="Write the report as an SVG image.")  # fmt: skip
@click.option("--html", metavar="OUT", type=OutputFile(),
              help="Write the `stepscope view` page with its data as a single file.")  # fmt: skip
@click.option("--source-root", metavar="FOLDER",
              type=NamedPath(path_type=Path, exists=True, file_okay=False),
              help="With --html: include the trace's source files in FOLDER.")  # fmt: skip
@click.option("--whatif", "whatifs", metavar="CHANGES", multiple=True,
              help="With --html: include this prediction, such as amp; separate changes that are "
              "applied together by spaces; may be repeated.")  # fmt: skip
@click.option("--compare", "compared", metavar="FILE", multiple=True, type=NamedPath(exists=True),
              help="With --html: include the comparison with this trace; may be "
              "repeated.")  # fmt: skip
@click.option("--step", type=int, help="Show one step; the default is the mean over all.")
@click.option("--rank", type=int, help="Show one rank; the default is all, with details of one.")
@click.option("--depth", type=click.IntRange(1), default=4, show_default=True,
              help="Levels of the module tree to show.")  # fmt: skip
def report(
    file: TraceFile,
    as_json: bool,
    svg: str | None,
    html: str | None,
    source_root: Path | None,
    whatifs: tuple[str, ...],
    compared: tuple[str, ...],
    step: int | None,
    rank: int | None,
    depth: int,
) -> None:
    """Show where the time of a training step goes.

    For a memory snapshot or timeline, show what fills the memory, as `stepscope memory` does.
    """
    folder = file.path
    file, many = focused(file, rank)
    if html is not None:
        from stepscope.cli.single_file import write_html

        others = [_opened(replace(file, path=path)) for path in compared]
        write_html(_opened(file), html, rank, step, source_root, whatifs, others)
        return
    if compared:
        raise click.UsageError("--compare needs --html; otherwise use: stepscope diff")
    from stepscope.cli.kept_report import report_of

    try:
        found = report_of(file, rank, step)
    except OnlyMemory as found_memory:
        if svg is not None:
            raise
        show_memory(found_memory.trace, as_json)
        return
    say_ranks_without_steps(file.path, found.ranks_without_steps)
    if many:
        found = replace(found, job=many.findings)
    if as_json:
        facts = found.summaries
        echo_json({"job": found.job, "ranks": facts} if found.job else facts[0])
    elif svg is not None:
        from stepscope.summary.report_text import picture

        write_text(Path(svg), picture(found.summaries, depth, _slowest(found)))
    else:
        _print(found, folder, file.path, depth)


def _print(found: KeptReport, folder: str, detailed: str, depth: int) -> None:
    """Print the findings on a job, the report, and what to ask next."""
    from rich.text import Text

    from stepscope.summary.report_text import print_report

    console = terminal()
    if found.job:
        from stepscope.summary.job_findings import print_findings

        print_findings(console, found.job, folder)
    print_report(console, found.summaries, depth, _slowest(found))
    advice = f"\nFor causes and fixes: stepscope analyze {shlex.quote(detailed)}"
    console.print(Text(advice, "dim"), soft_wrap=True)


def _slowest(found: KeptReport) -> int | None:
    return found.job.slowest_rank if found.job else None


def _opened(file: TraceFile) -> Trace:
    """The trace, also one of memory alone: the page shows it."""
    try:
        return file.open()
    except OnlyMemory as found:
        return found.trace
