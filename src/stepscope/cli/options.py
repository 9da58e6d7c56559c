"""What every command that reads a trace takes: FILE, --model and --no-cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepscope.cli.progress import progress_bar

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


def takes_trace(command: Command) -> Command:
    """Give a command FILE and its options; it gets the opened trace as `trace`.

    Example:
        @click.command()
        @takes_trace
        def count(trace: Trace) -> None:
            click.echo(len(trace.events))
    """

    @click.argument("file", type=click.Path())
    @click.option("--model", metavar="JSON", type=click.Path(),
                  help="The model tree, for a trace that names no module itself.")  # fmt: skip
    @click.option("--no-cache", is_flag=True, help="Neither use nor keep earlier results.")
    @wraps(command)
    def opened(file: str, model: str | None, no_cache: bool, **rest: Any) -> Any:
        from stepscope.opening import open  # loads NumPy and Arrow: not for `--help`

        with progress_bar(f"reading {file}") as progress:
            trace = open(file, model=model, cache=not no_cache, progress=progress)
        tell_of_ranks_without_steps(trace)
        return command(trace=trace, **rest)

    return opened  # type: ignore[return-value]


def tell_of_ranks_without_steps(trace: Trace) -> None:
    """Say on stderr which ranks of a job have nothing to tell."""
    from stepscope.annotate.steps import ranks_with_steps

    for rank in sorted({*trace.metadata.ranks} - {*ranks_with_steps(trace)}):
        click.echo(f"! rank {rank} of {trace.metadata.source} has no recorded step", err=True)
