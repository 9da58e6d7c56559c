"""FILE of a command: a file or a folder of few ranks, opened whole, or a folder of many ranks.

A folder of more than 16 ranks is compared by its sketches, with one rank opened alone. A file never
passes that machinery.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.errors import TraceError
from stepscope.faces.terminal.options import Command, NamedPath, opens_traces, refuse_two_answers
from stepscope.faces.terminal.output import progress_bar, say

if TYPE_CHECKING:
    from stepscope.models.ranks.job import ManyRanks
    from stepscope.trace.trace import Trace

MEMORY_FORMATS = ("memory snapshot", "memory timeline")
_MOST_ARENAS = -8  # M_ARENA_MAX of glibc's malloc.h
_MOST_FAILURES = 5  # files that cannot be read, named on stderr


class OnlyMemory(TraceError):
    """A memory snapshot or timeline has no steps: few commands can use it."""

    def __init__(self, trace: Trace) -> None:
        file, format = trace.metadata.source, trace.metadata.format
        super().__init__(f"{file} is a {format}; use: stepscope memory {shlex.quote(file)}")
        self.trace = trace


def _share_freed_memory() -> None:
    """Let all threads of this process, which the user did not start, use one arena of glibc.

    An arena of its own returns each long array of a thread to the system, which clears the pages
    again for the next: a fifth of the memory and a tenth of the time of a million events.
    """
    from ctypes import CDLL

    with suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        CDLL(None).mallopt(_MOST_ARENAS, 1)


@dataclass(frozen=True)
class InputFile:
    """FILE and the options that say how to open it."""

    path: str
    model: str | None
    as_recorded: bool
    cache: bool
    rank: int | None = None  # which to open of a folder of many ranks; None for the command's choice
    range_name: str = ""  # of the ranges to look at; empty for all steps
    graph_capture: str | None = None  # a trace of the capture of the CUDA graphs that it replays

    def open(self, *, memory: bool = False) -> Trace:
        """The annotated trace, read once, with a progress bar meanwhile.

        Of a folder of many ranks it is one alone, as stderr says.

        Raises:
            OnlyMemory: if it holds nothing that the command could use.
            StepscopeError: if it cannot be read.
        """
        if self._trace.metadata.format in MEMORY_FORMATS and not memory:
            raise OnlyMemory(self._trace)
        return self._trace

    @cached_property
    def _trace(self) -> Trace:
        return self._open_folder() if Path(self.path).is_dir() else self._read()

    def load(self, *, memory: bool = False) -> Trace:
        """The same, and the ranks without steps on stderr."""
        trace = self.open(memory=memory)
        warn_of_ranks(trace.metadata.source, ranks_without_steps(trace))
        return trace

    def focused(self) -> tuple[InputFile, ManyRanks | None]:
        """What to open; of a folder of many ranks the slowest one, and all their sketches.

        With a rank asked for no others are read: `open` opens its file alone.
        """
        many = None if self.rank is not None else many_ranks(Path(self.path), self.cache)
        return (self, None) if many is None else (self.slowest(many), many)

    def slowest(self, many: ManyRanks) -> InputFile:
        """The file of the rank that works longest, as stderr says."""
        slowest = many.findings.slowest_rank
        say(
            f"! {many.report.ranks} ranks are compared by their sketches; only rank {slowest}, the "
            "slowest, is read in full (choose another with --rank)"
        )
        return replace(self, path=str(many.file(slowest)))

    def _read(self) -> Trace:
        from stepscope.facts.load import open  # loads NumPy and Arrow: not for `--help`

        _share_freed_memory()
        with progress_bar(f"reading {self.path}") as progress:
            return open(
                self.path,
                model=self.model,
                as_recorded=self.as_recorded,
                range_name=self.range_name,
                graph_capture=self.graph_capture,
                cache=self.cache,
                progress=progress,
            )

    def _open_folder(self) -> Trace:
        from stepscope.models.ranks.job import files_of_many
        from stepscope.trace.concat import one_rank

        files = files_of_many(Path(self.path))
        if not files:
            return self._read()
        trace = replace(self, path=str(self._file_of_rank(files)))._read()
        if self.rank is not None:
            return one_rank(trace, self.rank)
        say(
            f"! {self.path} holds {len(files)} ranks, which are not joined: only rank "
            f"{trace.metadata.ranks[0]} is read; stepscope ranks compares all"
        )
        return trace

    def _file_of_rank(self, files: Sequence[Path]) -> Path:
        """The file of the rank, by default of the lowest, as names say or else the sketches."""
        from stepscope.models.ranks.job import file_named, sketched

        named = file_named(files, self.rank)
        if named is not None:
            return named
        return sketched(self.path, files, cache=self.cache).file(self.rank or 0)


def takes_file(command: Command) -> Command:
    """Give a command FILE and its options; it gets an `InputFile` as `file`."""

    @click.argument("file", type=NamedPath())
    @opens_traces
    @wraps(command)
    def with_file(file: str, **rest: Any) -> Any:
        refuse_two_answers(rest)
        return command(file=input_file(file, rest.get("rank"), rest), **rest)

    return with_file  # type: ignore[return-value]


def input_file(path: str, rank: int | None, options: dict[str, Any]) -> InputFile:
    """A file as the options of `opens_traces` say, which are taken out of `options`."""
    how = {key: options.pop(key) for key in ("model", "as_recorded", "range_name", "graph_capture")}
    return InputFile(path, cache=not options.pop("no_cache"), rank=rank, **how)


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
    def opened(file: InputFile, **rest: Any) -> Any:
        return command(trace=file.load(), **rest)

    return opened  # type: ignore[return-value]


def ranks_without_steps(trace: Trace) -> list[int]:
    from stepscope.facts.annotate.steps.step_table import ranks_with_steps

    return sorted({*trace.metadata.ranks} - {*ranks_with_steps(trace)})


def warn_of_ranks(source: str, ranks: Iterable[int]) -> None:
    numbers = list(ranks)
    if not numbers:
        return  # a kept answer loads no reader
    from stepscope.read.rank_folder import shown

    say(f"! no recorded step in {source}: rank {shown(numbers)}")


def many_ranks(path: Path, cache: bool) -> ManyRanks | None:
    """The ranks of a folder of many, sketched; None for any other path."""
    if not path.is_dir():
        return None
    from stepscope.models.ranks.job import files_of_many, sketched

    files = files_of_many(path)
    if not files:
        return None
    many: ManyRanks = with_rank_progress(
        len(files), lambda finished: sketched(path, files, finished=finished, cache=cache)
    )
    failed = [result for result in many.results if result.sketch is None]
    for result in failed[:_MOST_FAILURES]:
        say(f"! {result.error}")
    if len(failed) > _MOST_FAILURES:
        say(f"! and {len(failed) - _MOST_FAILURES} more files that cannot be read")
    return many


def with_rank_progress(total: int, read: Callable[[Callable[[str], None]], Any]) -> Any:
    """What `read` returns, with a progress bar; it calls its argument with each file when done."""
    numbers = count(1)
    with progress_bar(f"reading {total} ranks") as progress:
        return read(lambda file: progress(next(numbers), total))
