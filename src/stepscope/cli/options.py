"""Options that several commands share: FILE with --model and --no-cache, and number types."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepscope.cli.path_options import NamedPath
from stepscope.cli.progress import progress_bar
from stepscope.errors import TraceError

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])
MEMORY_FORMATS = ("memory snapshot", "memory timeline")
_READ_MEMORY = ("memory", "query", "diff")
_ANSWERS = {"as_json": "--json", "svg": "--svg", "html": "--html"}


def keeps_recorded_times(command: Command) -> Command:
    """Give a command the option to show times of captures as recorded."""
    option = click.option(
        "--as-recorded", is_flag=True,
        help="Keep the cost of recording in the times of a capture.",
    )  # fmt: skip
    return option(command)


class OnlyMemory(TraceError):
    """A memory snapshot or timeline has no steps: few commands can use it.

    Attributes:
        trace: what was read.
    """

    def __init__(self, trace: Trace) -> None:
        file, format = trace.metadata.source, trace.metadata.format
        super().__init__(f"{file} is a {format}; use: stepscope memory {shlex.quote(file)}")
        self.trace = trace


@dataclass(frozen=True)
class TraceFile:
    """FILE and the options that say how to open it.

    Attributes:
        rank: which to open of a folder of many ranks; by default that of `--rank`.
    """

    path: str
    model: str | None
    as_recorded: bool
    cache: bool
    rank: int | None = None

    def open(self) -> Trace:
        """The annotated trace, with a progress bar while it is read.

        Of a folder of many ranks it is one alone, as stderr says.

        Raises:
            OnlyMemory: if it holds nothing that the command could use.
            StepscopeError: if it cannot be read.
        """
        trace = self._one_of_many() if Path(self.path).is_dir() else None
        trace = self._whole() if trace is None else trace
        name = click.get_current_context().command.name
        if trace.metadata.format in MEMORY_FORMATS and name not in _READ_MEMORY:
            raise OnlyMemory(trace)
        return trace

    def _whole(self) -> Trace:
        from stepscope.load import open  # loads NumPy and Arrow: not for `--help`

        with progress_bar(f"reading {self.path}") as progress:
            return open(
                self.path, model=self.model, as_recorded=self.as_recorded, cache=self.cache,
                progress=progress,
            )  # fmt: skip

    def _one_of_many(self) -> Trace | None:
        """One rank of a folder of many; None for another folder."""
        from stepscope.cli.many_ranks import file_of_rank
        from stepscope.ranks.folder import files_of_many
        from stepscope.trace.one_rank import one_rank

        files = files_of_many(Path(self.path))
        if not files:
            return None
        rank = self.rank
        if rank is None:
            rank = click.get_current_context().params.get("rank")
        trace = replace(self, path=str(file_of_rank(self, files, rank)))._whole()
        if rank is not None:
            return one_rank(trace, rank)
        click.echo(
            f"! {self.path} holds {len(files)} ranks, which are not joined: only rank "
            f"{trace.metadata.ranks[0]} is read; stepscope ranks compares all", err=True,
        )  # fmt: skip
        return trace


def takes_file(command: Command) -> Command:
    """Give a command FILE and its options; it gets a `TraceFile` as `file`."""

    @click.argument("file", type=NamedPath())
    @click.option("--model", metavar="JSON", type=NamedPath(),
                  help="Model tree, for a trace that names no modules.")  # fmt: skip
    @keeps_recorded_times
    @click.option("--no-cache", is_flag=True, help="Do not use the cache.")
    @wraps(command)
    def with_file(
        file: str, model: str | None, as_recorded: bool, no_cache: bool, **rest: Any
    ) -> Any:
        _refuse_two_answers(rest)
        from stepscope.trace.freed_memory import freed_memory_kept

        # Until the command ends: what it derives takes and frees as large arrays as reading does.
        # It begins before NumPy is loaded, whose threads otherwise have arenas of their own, which
        # later threads would take over; these return memory all the same.
        click.get_current_context().find_root().with_resource(freed_memory_kept())
        return command(file=TraceFile(file, model, as_recorded, not no_cache), **rest)

    return with_file  # type: ignore[return-value]


def takes_trace(command: Command) -> Command:
    """Give a command FILE and its options; it gets the opened trace as `trace`.

    Example:
        @click.command()
        @takes_trace
        def count(trace: Trace) -> None:
            click.echo(len(trace.events))
    """

    @takes_file
    @wraps(command)
    def opened(file: TraceFile, **rest: Any) -> Any:
        trace = file.open()
        say_ranks_without_steps(trace.metadata.source, ranks_without_steps(trace))
        return command(trace=trace, **rest)

    return opened  # type: ignore[return-value]


def _refuse_two_answers(options: Mapping[str, Any]) -> None:
    given = [name for key, name in _ANSWERS.items() if options.get(key)]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined; choose one")


def ranks_without_steps(trace: Trace) -> list[int]:
    """The ranks of a job that have no recorded step."""
    from stepscope.annotate.steps.step_table import ranks_with_steps

    return sorted({*trace.metadata.ranks} - {*ranks_with_steps(trace)})


def say_ranks_without_steps(source: str, ranks: Iterable[int]) -> None:
    """Say on stderr which ranks have no recorded step."""
    for rank in ranks:
        click.echo(f"! rank {rank} of {source} has no recorded step", err=True)


class FiniteRange(click.FloatRange):
    """A range of finite numbers: `nan` would pass every gate."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        return number
