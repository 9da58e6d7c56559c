"""Options that several commands share: types of paths and numbers, and `--as-recorded`."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stepscope.base.input_files import content_of
from stepscope.faces.terminal.output import say

if TYPE_CHECKING:
    from stepscope.base.scratch import Scratch

Command = TypeVar("Command", bound=Callable[..., Any])
_RECORDING = re.compile(r"\.(stepscope|json|pb|sqlite|nsys-rep|pickle)(\.gz|\.zst)?$")
_ANSWERS = {"as_json": "--json", "svg": "--svg", "html": "--html", "ncu": "--ncu"}


def opens_traces(command: Command) -> Command:
    """Options that say how to open a trace: model, as_recorded, range_name, graph_capture and no_cache."""
    options = (
        click.option(
            "--model",
            metavar="FILE",
            type=NamedPath(),
            help="Model tree (JSON or .onnx), for a trace that names no modules.",
        ),
        click.option(
            "--as-recorded", is_flag=True, help="Keep the cost of recording in the times of a capture."
        ),
        click.option(
            "--range",
            "range_name",
            metavar="NAME",
            default="",
            help="Show only steps inside ranges of this name; if there are none, each range is a step.",
        ),
        takes_path(
            "--graph-capture", "TRACE", "Trace in which the CUDA graphs that the file replays were captured."
        ),
        click.option("--no-cache", is_flag=True, help="Do not use the cache."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def at_least_one(name: str, default: int | None, help: str, **rest: Any) -> Callable[[Command], Command]:
    """An option that takes a whole number from 1 on."""
    rest = {"show_default": default is not None, **rest}
    return click.option(name, type=click.IntRange(min=1), default=default, help=help, **rest)


def above_zero(name: str, default: float, help: str) -> Callable[[Command], Command]:
    """An option that takes a finite number above 0."""
    kind = FiniteRange(min=0, min_open=True)
    return click.option(name, type=kind, default=default, show_default=True, help=help)


def takes_port(least: int, help: str, **rest: Any) -> Callable[[Command], Command]:
    """An option --port, 0 if any free port may be asked for."""
    return click.option("--port", type=click.IntRange(least, 65535), help=help, **rest)


def takes_format(help: str, *forms: str) -> Callable[[Command], Command]:
    """Give a command `form`, one of some, by --format; the first by default, and JSON by --json."""
    choice: Any = {"type": click.Choice(forms), "default": forms[0], "show_default": True, "help": help}

    def with_form(command: Command) -> Command:
        command = click.option("--json", "form", flag_value="json", help="Short for --format json.")(command)
        return click.option("--format", "form", **choice)(command)

    return with_form


def ask_before_running(scratch: Scratch) -> None:
    """Ask whether to run a script that this system cannot keep from changing its project."""
    if scratch.is_unguarded and sys.stdin.isatty():
        where = " and ".join(scratch.roots)
        guarded = f"this system cannot keep C++ code and programs of the script from changing {where}"
        click.confirm(f"{guarded}; run it?", abort=True, err=True)


def refuse_two_answers(options: Mapping[str, Any]) -> None:
    """Refuse options that each ask for another form of the answer; raises click.UsageError if there are
    two."""
    given = [name for key, name in _ANSWERS.items() if options.get(key)]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined; choose one")


class NamedPath(click.Path):
    """The type of a path that is not empty: an empty path would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


def takes_path(name: str, metavar: str, help: str, **rest: Any) -> Callable[[Command], Command]:
    """An option that takes the path of an existing file."""
    kind = NamedPath(exists=True, dir_okay=False)
    return click.option(name, metavar=metavar, type=kind, help=help, **rest)


takes_rules = takes_path("--rules", "FILE", "Python file with custom rules (it is executed).", multiple=True)


class ScriptPath(NamedPath):
    """The type of a script to run: a recording that was named by mistake is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if _RECORDING.search(path):
            hint = f"is a recording, not a script; to open it: stepscope report {path}"
            self.fail(f"{path} {hint}", param, ctx)
        return path


class OutputFile(NamedPath):
    """The type of a file to write: its folder exists and is writable."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = str(super().convert(value, param, ctx))
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            self.fail(f"cannot write {path}: the folder {folder} does not exist", param, ctx)
        if not os.access(folder, os.W_OK):
            self.fail(f"cannot write {path}: no permission to write in {folder}", param, ctx)
        return path


class FiniteRange(click.FloatRange):
    """A range of finite numbers: `nan` would pass every gate."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        return number


# -- commands that run a script: which options are stepscope's, and which are the script's


class ScriptCommand(click.Command):
    """A command whose last positional argument is a script, followed by the script's arguments.

    Options of stepscope stand anywhere before the script. After it they are the script's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the command line at the script; put stepscope's options first."""
        ours, positionals, rest = self._split(args)
        if len(positionals) == self._positional_count():
            self.check_arguments(positionals[-1], rest)
        return super().parse_args(ctx, [*ours, "--", *positionals, *rest])

    def check_arguments(self, script: str, arguments: Sequence[str]) -> None:
        """Look at what a script gets; by default it gets anything."""

    def misplaced(self, script: str, arguments: Sequence[str]) -> list[str]:
        """The options of this command among the arguments of a script that does not mention them."""
        own = {name for param in self.params for name in (*param.opts, *param.secondary_opts)}
        names = dict.fromkeys(word.partition("=")[0] for word in arguments if word.startswith("-"))
        return [name for name in names if name in own and not mentions(script, name)]

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """stepscope's options, the positional arguments up to the script, and what follows it."""
        options: list[str] = []
        positionals: list[str] = []
        words = list(args)
        while words and len(positionals) < self._positional_count():
            word = words.pop(0)
            if word == "--":
                count = self._positional_count() - len(positionals)
                return options, [*positionals, *words[:count]], words[count:]
            if not (word.startswith("-") and word != "-"):
                positionals.append(word)
                continue
            options.append(word)
            if words and self._takes_value(word):
                options.append(words.pop(0))
        return options, positionals, words

    def _positional_count(self) -> int:
        return sum(isinstance(param, click.Argument) and param.nargs == 1 for param in self.params)

    def _takes_value(self, word: str) -> bool:
        if "=" in word:
            return False
        found = [param for param in self.params if isinstance(param, click.Option) and word in param.opts]
        return bool(found) and not (found[0].is_flag or found[0].count)


class MeasuringCommand(ScriptCommand):
    """A script command that says which of its options a script gets instead."""

    def check_arguments(self, script: str, arguments: Sequence[str]) -> None:
        """Say on stderr which of stepscope's options follow a script that does not mention them."""
        for name in self.misplaced(script, arguments):
            say(
                f"! {name} comes after {script}, so the script gets it; "
                "put stepscope's options before the script"
            )


def mentions(script: str, option: str) -> bool:
    """Whether a script has the option's name, as a word or with `_` for `-`."""
    word = option.lstrip("-").replace("-", "[-_]")
    with suppress(OSError, ValueError):  # it cannot be read, which is reported elsewhere
        return re.search(rf"\b{word}\b", content_of(script).decode("utf-8", "replace")) is not None
    return False
