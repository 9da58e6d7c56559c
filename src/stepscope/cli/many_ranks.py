"""Folders of many ranks: compared by their sketches, with one rank opened alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import TraceFile
from stepscope.cli.output import progress_bar

if TYPE_CHECKING:
    from stepscope.ranks.folder import ManyRanks
    from stepscope.ranks.map_ranks import RankResult


def many_ranks(path: Path, cache: bool) -> ManyRanks | None:
    """The ranks of a folder of many, sketched; None for any other path."""
    if not path.is_dir():
        return None
    from stepscope.ranks.folder import files_of_many, sketched

    files = files_of_many(path)
    if not files:
        return None
    done: list[str] = []
    with progress_bar(f"reading {len(files)} ranks") as progress:

        def finished(file: str) -> None:
            done.append(file)
            progress(len(done), len(files))

        found = sketched(files, finished, cache)
    say_failed(found.results)
    return found


def focused(file: TraceFile, rank: int | None) -> tuple[TraceFile, ManyRanks | None]:
    """The file to open; of a folder of many ranks that of the slowest, and all their sketches.

    If a rank is asked for, no others are read: `TraceFile.open` opens its file alone.
    """
    many = None if rank is not None else many_ranks(Path(file.path), file.cache)
    if many is None:
        return file, None
    return slowest_alone(file, many), many


def slowest_alone(file: TraceFile, many: ManyRanks) -> TraceFile:
    """The file of the rank that works longest, as stderr says."""
    slowest = many.findings.slowest_rank
    click.echo(
        f"! {many.report.ranks} ranks are compared by their sketches; only rank {slowest}, the "
        "slowest, is read in full (choose another with --rank)", err=True,
    )  # fmt: skip
    return replace(file, path=str(many.file(slowest)))


def file_of_rank(file: TraceFile, files: Sequence[Path], rank: int | None) -> Path:
    """The file of a rank, by default of the lowest, as names say or else the sketches.

    Raises:
        IngestError: if there is none.
    """
    from stepscope.ranks.folder import file_named, sketched

    named = file_named(files, rank)
    if named is not None:
        return named
    return sketched(files, lambda file: None, file.cache).file(rank or 0)


def say_failed(results: Sequence[RankResult]) -> None:
    """Say on stderr which files cannot be read."""
    failed = [one for one in results if one.sketch is None]
    for one in failed[:5]:
        click.echo(f"! {one.error}", err=True)
    if len(failed) > 5:
        click.echo(f"! and {len(failed) - 5} more files that cannot be read", err=True)
