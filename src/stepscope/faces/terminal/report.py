"""`stepscope report`: show where the time of a training step goes."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.faces.terminal.memory import show_memory
from stepscope.faces.terminal.options import NamedPath, OutputFile, at_least_one, takes_rules
from stepscope.faces.terminal.output import echo_json, progress_bar, terminal, write_text
from stepscope.faces.terminal.source import InputFile, OnlyMemory, takes_file
from stepscope.faces.terminal.status import show_watched, watched_files

if TYPE_CHECKING:
    from stepscope.facts.summary.facts import Summary
    from stepscope.facts.summary.job_findings import JobFindings
    from stepscope.trace.trace import Trace


_OF_PAGE = {  # options of the page alone, and what to use instead
    "--redact": "redact",
    "--compare": "diff",
    "--whatif": "whatif",
    "--rules": "analyze --rules",
    "--source-root": "view",
}


@click.command()
@takes_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--svg", metavar="OUT", type=OutputFile(), help="Write the report as an SVG image.")
@click.option(
    "--html",
    metavar="OUT",
    type=OutputFile(),
    help="Write the `stepscope view` page with its data as a single file.",
)
@click.option(
    "--source-root",
    metavar="FOLDER",
    type=NamedPath(path_type=Path, exists=True, file_okay=False),
    help="With --html: include the trace's source files in FOLDER.",
)
@click.option(
    "--whatif",
    "whatifs",
    metavar="CHANGES",
    multiple=True,
    help="With --html: include this prediction, such as amp; separate changes that are "
    "applied together by spaces; may be repeated.",
)
@click.option(
    "--compare",
    "compared",
    metavar="FILE",
    multiple=True,
    type=NamedPath(exists=True),
    help="With --html: include the comparison with this trace; may be repeated.",
)
@takes_rules
@click.option("--redact", is_flag=True, help="With --html: replace what identifies you, as `redact` does.")
@click.option("--ncu", is_flag=True, help="Print the Nsight Compute command for the hottest kernels.")
@click.option("--step", type=int, help="Show one step; the default is the mean over all.")
@click.option("--rank", type=int, help="Show one rank; the default is all, with details of one.")
@at_least_one("--depth", 4, "Levels of the module tree to show.")
def report(
    file: InputFile,
    as_json: bool,
    svg: str | None,
    html: str | None,
    source_root: Path | None,
    whatifs: tuple[str, ...],
    compared: tuple[str, ...],
    rules: tuple[str, ...],
    redact: bool,
    ncu: bool,
    step: int | None,
    rank: int | None,
    depth: int,
) -> None:
    """Show where the time of a training step goes.

    For a memory snapshot or timeline, show what fills the memory, as `stepscope memory` does.
    """
    folder = file.path
    wanted = dict(zip(_OF_PAGE, (redact, compared, whatifs, rules, source_root), strict=True))
    given = [name for name, value in wanted.items() if value]
    if watched := watched_files(folder):
        others = {"--svg": svg, "--ncu": ncu, "--step": step is not None}
        refused = [*given, *(name for name, value in others.items() if value)]
        _report_watched(folder, watched, refused, html, as_json, rank)
        return
    if given and html is None:
        raise click.UsageError(f"{given[0]} needs --html; otherwise use: stepscope {_OF_PAGE[given[0]]}")
    file, many = file.focused()
    if html is not None:
        if redact and (source_root or rules):
            raise click.UsageError("--redact cannot hide what --source-root and --rules add; leave them out")
        files = [file, *(replace(file, path=path) for path in compared)]
        _write_html(_opened(files, redact), html, rank, step, source_root, whatifs, rules)
        return
    try:
        summaries, job = report_of_file(file, rank, step)
    except OnlyMemory as only:
        if svg is not None:
            raise
        show_memory(only.trace, as_json)
        return
    job = many.findings if many else job
    if ncu:
        from stepscope.faces.terminal.ncu import profile_hottest

        slowest = job.slowest_rank if job else None
        profile_hottest(next((each for each in summaries if each.rank == slowest), summaries[0]))
    elif as_json:
        echo_json({"job": job, "ranks": summaries} if job else summaries[0])
    elif svg is not None:
        from stepscope.facts.summary.report_text import picture

        write_text(Path(svg), picture(summaries, depth, job.slowest_rank if job else None))
    else:
        _print(summaries, job, folder, file.path, depth)


def _report_watched(
    folder: str,
    files: Sequence[Path],
    refused: Sequence[str],
    html: str | None,
    as_json: bool,
    rank: int | None,
) -> None:
    if refused:
        instead = {"--redact": "; use: stepscope redact", "--svg": "; use --html"}
        raise click.UsageError(f"a watched run has no {refused[0]}{instead.get(refused[0], '')}")
    if html is None:
        show_watched(files, as_json, rank)
        return
    from stepscope.faces.page.watch_answer import WatchedJob, watch_page

    write_text(Path(html), watch_page(WatchedJob(Path(folder).name, files).answer(rank)))


def report_of_file(
    file: InputFile, rank: int | None, step: int | None
) -> tuple[list[Summary], JobFindings | None]:
    """The facts of each rank, and of their comparison; kept in the cache."""
    from stepscope.faces.terminal.answers import answer_of
    from stepscope.facts.summary.facts import Summary
    from stepscope.facts.summary.job_findings import JobFindings

    answer: Any = tuple[list[Summary], JobFindings | None]
    packages = ("models/ranks", "facts/roofline", "facts/summary")
    return answer_of(
        file, "report", answer, packages, (rank, step), lambda trace: _summarize(trace, rank, step)
    )


def _summarize(trace: Trace, rank: int | None, step: int | None) -> tuple[list[Summary], JobFindings | None]:
    from stepscope.facts.annotate.steps.step_table import ranks_with_steps
    from stepscope.facts.summary.report_facts import summarize
    from stepscope.models.ranks.job import findings_of, report_of_trace

    ranks = ranks_with_steps(trace) if rank is None else (rank,)
    job = report_of_trace(trace) if rank is None else None
    return [summarize(trace, number, step) for number in ranks], findings_of(job) if job else None


def _print(summaries: list[Summary], job: JobFindings | None, folder: str, detailed: str, depth: int) -> None:
    from rich.text import Text

    from stepscope.facts.summary.report_text import print_report

    console = terminal()
    if job:
        from stepscope.facts.summary.job_findings import print_findings

        print_findings(console, job, folder)
    print_report(console, summaries, depth, job.slowest_rank if job else None)
    advice = f"\nFor causes and fixes: stepscope analyze {shlex.quote(detailed)}"
    console.print(Text(advice, "dim"), soft_wrap=True)


def _opened(files: Sequence[InputFile], redact: bool) -> list[Trace]:
    traces = [file.open(memory=True) for file in files]
    if redact:
        from stepscope.trace.redact import own_words, redacted

        words = own_words()
        return [redacted(trace, words) for trace in traces]
    return traces


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
def _write_html(
    traces: Sequence[Trace],
    out: str,
    rank: int | None,
    step: int | None,
    source_root: Path | None,
    whatifs: Sequence[str],
    rules: Sequence[str],
) -> None:
    """Write the page with one step of the first trace, on all its ranks; others are compared with it."""
    from stepscope.analyze import load_rules
    from stepscope.base.numbers import plural
    from stepscope.faces.page.export_answers import report_of
    from stepscope.faces.page.open_files import trace_ids
    from stepscope.faces.page.single_file import project_files, single_file
    from stepscope.faces.page.trace_view import TraceView

    ids = trace_ids([Path(each.metadata.source).name for each in traces])
    others = {id: TraceView(other) for id, other in zip(ids[1:], traces[1:], strict=True)}
    custom = [rule for path in rules for rule in load_rules(path)]
    view = TraceView(traces[0], lambda id: others[id].trace, source_root, custom)
    files = project_files(view)
    if files:
        lines = [f"{out} includes the text of {plural(len(files), 'source file')}:", *files]
        print("\n  ".join(lines), file=sys.stderr)
    asked = ["\n".join(changes.split()) for changes in whatifs]
    report = replace(report_of(view, rank, step, files, others), whatifs=asked)
    with progress_bar(f"writing {out}") as progress:
        text = single_file(report, progress=progress)
    write_text(Path(out), text)
