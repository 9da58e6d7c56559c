"""What several commands take: FILE with --model and --no-cache, one kind of answer, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepscope.cli.paths import NamedPath
from stepscope.cli.progress import progress_bar

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])
_ANSWERS = {"as_json": "--json", "svg": "--svg", "html": "--html"}


def takes_trace(command: Command) -> Command:
    """Give a command FILE and its options; it gets the opened trace as `trace`.

    Example:
        @click.command()
        @takes_trace
        def count(trace: Trace) -> None:
            click.echo(len(trace.events))
    """

    @click.argument("file", type=NamedPath())
    @click.option("--model", metavar="JSON", type=NamedPath(),
                  help="The model tree, for a trace that names no module itself.")  # fmt: skip
    @click.option("--no-cache", is_flag=True, help="Neither use nor keep earlier results.")
    @wraps(command)
    def opened(file: str, model: str | None, no_cache: bool, **rest: Any) -> Any:
        _refuse_two_answers(rest)
        from stepscope.opening import open  # loads NumPy and Arrow: not for `--help`

        with progress_bar(f"reading {file}") as progress:
            trace = open(file, model=model, cache=not no_cache, progress=progress)
        tell_of_ranks_without_steps(trace)
        return command(trace=trace, **rest)

    return opened  # type: ignore[return-value]


def _refuse_two_answers(options: Mapping[str, Any]) -> None:
    given = [name for key, name in _ANSWERS.items() if options.get(key)]
    if len(given) > 1:
        raise click.UsageError(f"expected one answer to be asked for, found {' and '.join(given)}")


def tell_of_ranks_without_steps(trace: Trace) -> None:
    """Say on stderr which ranks of a job have nothing to tell."""
    from stepscope.annotate.steps import ranks_with_steps

    for rank in sorted({*trace.metadata.ranks} - {*ranks_with_steps(trace)}):
        click.echo(f"! rank {rank} of {trace.metadata.source} has no recorded step", err=True)


class FiniteRange(click.FloatRange):
    """A range of numbers that are some: `nan` would pass every gate."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        return number
