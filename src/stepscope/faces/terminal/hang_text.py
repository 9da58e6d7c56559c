"""Dumps of a job that hangs: found among sources, read, and shown by `stepscope ranks`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.errors import IngestError
from stepscope.faces.terminal.output import echo_json, terminal

if TYPE_CHECKING:
    from stepscope.models.ranks.hangs import HangReport

_MOST_ROWS = 20  # of alike ranks; with the sentence they fill one screen
_MOST_OTHERS = 5  # calls that wait, too


def dump_files(sources: Sequence[str]) -> list[Path]:
    """The flight recorder's dumps of a job; none if most of its files are traces."""
    from stepscope.models.ranks.files import is_url, paths_at
    from stepscope.read import is_trace
    from stepscope.read.flight_recorder import is_dump

    files = {path for source in sources if not is_url(source) for path in paths_at(source)}
    dumps = sorted(filter(is_dump, files))
    return dumps if dumps and len(dumps) >= sum(map(is_trace, files.difference(dumps))) else []


def show_hang(files: Sequence[Path], as_json: bool) -> None:
    """Print what the dumps say; raises IngestError if none can be read."""
    from stepscope.base.parallel import on_each
    from stepscope.models.ranks.hangs import hang_of
    from stepscope.read.flight_recorder import read_dump

    results = on_each({path: path.stat().st_size for path in files}, read_dump, None, lambda *_: None)
    errors = [str(result) for result in results.values() if isinstance(result, IngestError)]
    dumps = [result for result in results.values() if not isinstance(result, IngestError)]
    if not dumps:
        raise IngestError(errors[0])
    # Of several dumps of a rank one with stacks, the one written last.
    dumps.sort(key=lambda dump: (len(dump.places) > 1, dump.written_ns))
    latest = {dump.rank: dump for dump in dumps}
    report = hang_of([latest[rank] for rank in sorted(latest)])
    for error in errors:
        click.echo(f"! {error}", err=True)
    echo_json(report) if as_json else _print(report)


def _print(report: HangReport) -> None:
    from rich.text import Text

    from stepscope.facts.summary.numbers import plural
    from stepscope.facts.summary.text_tables import plain_table
    from stepscope.models.ranks.hangs import in_runs

    console = terminal()
    console.print(Text(f"Dumps of {plural(report.ranks, 'rank')}\n", "bold"))
    console.print(Text(f"▶ {report.sentence}", "bold yellow"), soft_wrap=True)
    for blocked in report.blocked[1 : 1 + _MOST_OTHERS]:
        console.print(Text(f"  also: {blocked.sentence}", "dim"), soft_wrap=True)
    table = plain_table("Where the ranks stand", "ranks~", "state", "call~", "at~")
    for stand in report.stands[:_MOST_ROWS]:
        ranks = in_runs(stand.ranks).partition(" ")[2]
        table.add_row(ranks, stand.state, Text(stand.call), Text(stand.place))
    console.print(table)
    if len(report.stands) > _MOST_ROWS:
        console.print("… and more (--json has all)", style="dim")
