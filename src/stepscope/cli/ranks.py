"""`stepscope ranks`: which rank of a job is slow, since when, and why."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.cli.json_output import echo_json
from stepscope.cli.path_options import NamedPath
from stepscope.cli.progress import progress_bar
from stepscope.cli.terminal import terminal
from stepscope.errors import IngestError


@click.command()
@click.argument("source", type=NamedPath(path_type=Path))
@click.option("-o", "--output", "dataset", metavar="FOLDER", type=NamedPath(path_type=Path),
              help="Keep the sketches there, and reuse those of unchanged files.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS",
              help="Read the files on this Dask cluster, such as tcp://host:8786.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ranks(source: Path, dataset: Path | None, scheduler: str | None, as_json: bool) -> None:
    """Find the slow ranks of a job: which, in which stage and steps, why, and at what cost.

    SOURCE is a folder with one trace per rank; subfolders name the machines. Each file is read on
    its own and condensed into a sketch, so memory does not grow with the number of ranks.
    """
    from stepscope.ranks import job_report, sketch_files
    from stepscope.ranks.engines import on_dask, on_this_machine
    from stepscope.ranks.map_ranks import job_files
    from stepscope.ranks.ranks_text import print_job

    engine = on_dask(scheduler) if scheduler else on_this_machine
    files = job_files(source.absolute() if scheduler else source)
    done: list[Path] = []
    with progress_bar(f"reading {len(files)} ranks") as progress:

        def finished(file: Path) -> None:
            done.append(file)
            progress(len(done), len(files))

        results = sketch_files(files, dataset, engine, finished)
    sketches = [one.sketch for one in results if one.sketch]
    for one in results:
        if one.sketch and one.renumbered:
            click.echo(f"! {one.file} has no rank of its own; shown as {one.sketch.rank}", err=True)
    failed = [one for one in results if one.sketch is None]
    if not sketches:
        raise IngestError(f"{source}: no rank can be read: {failed[0].error}")
    report = job_report(sketches)
    if as_json:
        errors = [{"file": one.file, "error": one.error} for one in failed]
        echo_json({**report.to_json(), "errors": errors})
        return
    print_job(terminal(), report, failed)
