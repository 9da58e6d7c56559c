"""`stepscope record`: record a few steps of a watched run now."""

import time
from collections.abc import Sequence

import click

from stepscope.record.watch.requests import MOST_STEPS, ask_to_record, recorded


@click.command()
@click.argument("pids", metavar="PID...", nargs=-1, required=True, type=click.IntRange(1))
@click.option(
    "--steps", type=click.IntRange(1, MOST_STEPS), default=3, show_default=True, help="Steps to record."
)
def record(pids: Sequence[int], steps: int) -> None:
    """Record the next steps of watched runs, as `stepscope run` does, next to their files."""
    for pid in pids:
        ask_to_record(pid, steps)
    for pid in pids:
        while (answer := recorded(pid)) is None:
            time.sleep(0.2)
        click.echo(f"{pid}: {answer['message']}; next: stepscope report {answer['file']}")
