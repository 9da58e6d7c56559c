"""What every command that reads a trace takes: FILE, --model and --no-cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from stepscope.cli.progress import progress_bar

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
        return command(trace=trace, **rest)

    return opened  # type: ignore[return-value]
