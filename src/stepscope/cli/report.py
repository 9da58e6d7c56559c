"""`stepscope report`: where the time of a training step goes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.options import takes_trace
from stepscope.cli.paths import OutputFile
from stepscope.cli.terminal import terminal
from stepscope.cli.writing import write_text

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@click.command()
@takes_trace
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("--svg", metavar="OUT", type=OutputFile(),
              help="The report as a picture.")  # fmt: skip
@click.option("--html", metavar="OUT", type=OutputFile(),
              help="The page of `stepscope view` with its data in one file.")  # fmt: skip
@click.option("--no-source", is_flag=True, help="With --html: leave out the text of source files.")
@click.option("--step", type=int, help="One step; by default the mean over all.")
@click.option("--rank", type=int, help="One rank; by default all, with the details of one.")
@click.option("--depth", type=click.IntRange(1), default=4, show_default=True,
              help="How deep the model tree is shown.")  # fmt: skip
def report(
    trace: Trace,
    as_json: bool,
    svg: str | None,
    html: str | None,
    no_source: bool,
    step: int | None,
    rank: int | None,
    depth: int,
) -> None:
    """Tell where the time of a training step goes."""
    if html is not None:
        from stepscope.cli.single_file import write_html

        write_html(trace, html, rank, step, not no_source)
        return
    from stepscope.annotate.steps import ranks_with_steps
    from stepscope.summary import summarise

    ranks = ranks_with_steps(trace) if rank is None else (rank,)
    summaries = [summarise(trace, one, step) for one in ranks]
    if as_json:
        facts = [summary.to_json() for summary in summaries]
        echo_json(facts[0] if len(facts) == 1 else {"ranks": facts})
        return
    from stepscope.summary.text import picture, print_report

    if svg is not None:
        write_text(Path(svg), picture(summaries, depth))
        return
    from rich.text import Text

    console = terminal()
    print_report(console, summaries, depth)
    file = shlex.quote(trace.metadata.source)
    console.print(Text(f"\nWhat to do about it: stepscope analyze {file}", "dim"), soft_wrap=True)
