"""`stepscope ranks`: which rank of a job is slow, since when, and why; or where it hangs, by its dumps."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from stepscope.analyze import Rule
from stepscope.base.numbers import plural
from stepscope.faces.page import bundle
from stepscope.faces.page.job_answer import job_answer, job_page
from stepscope.faces.page.open_files import Workbench
from stepscope.faces.terminal.options import NamedPath, OutputFile, takes_port
from stepscope.faces.terminal.output import echo_json, say, terminal, write_text
from stepscope.faces.terminal.source import with_rank_progress
from stepscope.faces.terminal.status import show_watched, watched_files
from stepscope.facts.load import open as open_trace
from stepscope.facts.summary.text_tables import plain_table
from stepscope.models.ranks.files import files_at, is_url, paths_at
from stepscope.models.ranks.hangs import HangReport, dumps_among, hang_in, in_runs
from stepscope.models.ranks.job import ManyRanks, sketched, sketched_trace
from stepscope.models.ranks.map_ranks import on_dask, on_this_machine
from stepscope.models.ranks.ranks_text import print_job
from stepscope.read.rank_folder import shown

_MOST_ROWS = 20  # of alike ranks; with the sentence they fill one screen
_MOST_OTHERS = 5  # calls that wait, too


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=NamedPath())
@click.option(
    "-o",
    "--output",
    "dataset",
    metavar="FOLDER",
    type=NamedPath(path_type=Path),
    help="Keep the sketches there, and reuse those of unchanged files.",
)
@click.option("--tables", is_flag=True, help="With -o: keep all tables of each rank there, too, as Parquet.")
@click.option(
    "--scheduler", metavar="ADDRESS", help="Read the files on this Dask cluster, such as tcp://host:8786."
)
@click.option("--view", is_flag=True, help="Open the page about the job in the browser.")
@click.option(
    "--html", "page", type=OutputFile(), metavar="OUT", help="Write the page about the job to one file."
)
@takes_port(1, "Port of --view [default: the first free port from 8765].")
@click.option("--no-browser", is_flag=True, help="With --view: print the URL only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ranks(
    sources: Sequence[str],
    dataset: Path | None,
    tables: bool,
    scheduler: str | None,
    view: bool,
    page: str | None,
    port: int | None,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Find the slow ranks of a job: which, in which stage and steps, why, and at what cost.

    SOURCE is a folder with one trace per rank, several such folders, a pattern such as '/jobs/run7/node-*',
    or a URL such as s3://bucket/job/; subfolders name the machines. Each file is read on its own and
    condensed into a sketch, so memory does not grow with the number of ranks.

    SOURCE may also hold the dumps that PyTorch's flight recorder writes when a job hangs. The answer
    then is the collective that hangs, who is missing from it or disagrees, and where each rank is.
    """
    if not view and (port or no_browser):
        raise click.UsageError(f"{'--port' if port else '--no-browser'} needs --view")
    if tables and dataset is None:
        raise click.UsageError("--tables needs -o FOLDER, where it keeps them")
    here = (path for source in sources if not is_url(source) for path in paths_at(source))
    if dumps := dumps_among(here):
        if view or page or dataset:
            raise click.UsageError("dumps of the flight recorder have no page and no sketches; use --json")
        _show_hang(dumps, as_json)
        return
    if watched := [file for source in sources for file in watched_files(source)]:
        if view or page or dataset:
            raise click.UsageError("a watched run has no sketches; for its page use: stepscope view")
        show_watched(watched, as_json)
        return
    if page or view:
        bundle.page("ranks.html")  # before minutes of reading
    many = _sketched(sources, dataset, scheduler, tables)
    failed = [result for result in many.results if result.sketch is None]
    if as_json:
        errors = [{"file": one.file, "error": one.error} for one in failed]
        echo_json({**many.report.to_json(), "errors": errors})
    else:
        print_job(terminal(), many.report, failed)
    if page:
        write_text(Path(page), job_page(job_answer(name_of(sources), many.job, many.report, many.results)))
    if view:
        from stepscope.faces.page.server import serve

        serve(job_workbench(name_of(sources), many), port, not no_browser, None, cache=True)


def _sketched(sources: Sequence[str], dataset: Path | None, scheduler: str | None, tables: bool) -> ManyRanks:
    """The ranks, of which at least one can be read."""
    how = {"engine": partial(on_dask, scheduler) if scheduler else on_this_machine, "tables": tables}
    # Workers have another working folder.
    here = (source if is_url(source) or not scheduler else str(Path(source).absolute()) for source in sources)
    files = files_at(*here)
    if len(files) == 1 and not (scheduler or dataset or is_url(files[0].name)):  # perhaps of several ranks
        return sketched_trace(open_trace(files[0].name))
    many: ManyRanks = with_rank_progress(
        len(files),
        lambda finished: sketched(", ".join(sources), files, dataset=dataset, finished=finished, **how),
    )
    free = [f"{one.file} as {one.sketch.rank}" for one in many.results if one.sketch and one.renumbered]
    if free:
        say(f"! {len(free)} without a rank of their own, shown with a free one: {shown(free)}")
    return many


def job_workbench(name: str, many: ManyRanks, rules: Sequence[Rule] = (), **how: Any) -> Workbench:
    """What serves the page about a job; traces on this machine are read when they are opened.

    `rules` are custom ones for their findings, and `how` arguments of `stepscope.open` for them.
    """
    local = not any(is_url(result.file) for result in many.results)
    names = dict.fromkeys(result.file for result in many.results if result.sketch and local)
    answer = job_answer(name, many.job, many.report, many.results)
    workbench = Workbench([*map(Path, names)], partial(open_trace, **how), answer, rules)
    ids = dict(zip(names, workbench.files, strict=True))
    for rank in answer.ranks:
        rank.trace = ids.get(rank.file)
    return workbench


def name_of(sources: Sequence[str | Path]) -> str:
    """The job's name: of its folder, or of the first of several.

    Example:
        >>> name_of(["/jobs/run7/"]), name_of(["/jobs/run7/node-0", "/jobs/run7/node-1"])
        ('run7', 'node-0 and 1 more')
    """
    first = Path(sources[0]).resolve().name
    return f"{first} and {len(sources) - 1} more" if len(sources) > 1 else first


# -- dumps of a job that hangs


def _show_hang(files: Sequence[Path], as_json: bool) -> None:
    """Print what the dumps say; raises IngestError if none can be read."""
    report, errors = hang_in(files)
    for error in errors:
        say(f"! {error}")
    echo_json(report) if as_json else _print_hang(report)


def _print_hang(report: HangReport) -> None:
    console = terminal()
    console.print(Text(f"Dumps of {plural(report.ranks, 'rank')}\n", "bold"))
    console.print(Text(f"▶ {report.sentence}", "bold yellow"), soft_wrap=True)
    for blocked in report.blocked[1 : 1 + _MOST_OTHERS]:
        console.print(Text(f"  also: {blocked.sentence}", "dim"), soft_wrap=True)
    table = plain_table("Where each rank is", "ranks~", "state", "call~", "at~")
    for stand in report.stands[:_MOST_ROWS]:
        ranks = in_runs(stand.ranks).partition(" ")[2]
        table.add_row(ranks, stand.state, Text(stand.call), Text(stand.place))
    console.print(table)
    if len(report.stands) > _MOST_ROWS:
        console.print("… and more (--json has all)", style="dim")
