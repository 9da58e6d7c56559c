"""`stepscope status`: what watched runs do now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from stepscope.errors import StepscopeError
from stepscope.record.watch.requests import watch_file_of, watched_runs


@click.command()
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(1))
def status(pids: Sequence[int]) -> None:
    """Show the last minute of watched runs; without PID, of all of yours on this machine."""
    files = {pid: watch_file_of(pid) for pid in pids} or watched_runs()
    if not files:
        raise StepscopeError("no watched run on this machine; start one with: stepscope watch SCRIPT")
    for pid, file in files.items():
        click.echo(f"{pid}: {_line(file)}; {file}")


def _line(file: Path) -> str:
    from stepscope.facts.watched import CAUSES
    from stepscope.read.watched_run import read_watched_run

    run = read_watched_run(file)
    ends = run.steps["begin_ns"] + run.steps["wall_ns"]
    if not len(ends):
        return "no step yet"
    latest = run.steps[ends > ends[-1] - 60_000_000_000]  # ns
    wall = 1e-6 * latest["wall_ns"]
    shares = {cause: float(latest[field].sum() / wall.sum()) for field, cause in CAUSES.items()}
    named = "".join(
        f", {share:.0%} {cause}" for cause, share in shares.items() if share >= 0.01
    )  # of a minute
    since_s = 1e-9 * (time.time_ns() - run.facts.begun_unix_ns - int(ends[-1]))
    return (
        f"step {int(latest['step'][-1]):,} ended {since_s:.3g} s ago; the last {len(latest):,} steps "
        f"took {wall.mean():.4g} ms, at most {wall.max():.4g} ms{named}"
    )
