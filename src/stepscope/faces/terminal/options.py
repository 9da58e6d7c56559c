"""Options that several commands share: types of paths and numbers, and `--as-recorded`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
_RECORDING = re.compile(r"\.(stepscope|json|pb|sqlite|nsys-rep|pickle)(\.gz|\.zst)?$")
_ANSWERS = {"as_json": "--json", "svg": "--svg", "html": "--html"}


def keeps_recorded_times(command: Command) -> Command:
    return click.option(
        "--as-recorded", is_flag=True, help="Keep the cost of recording in the times of a capture."
    )(command)


def chooses_step_range(command: Command) -> Command:
    return click.option(
        "--step-range", metavar="NAME", default="", help="Ranges of this name are the steps."
    )(command)


def at_least_one(name: str, default: int | None, help: str, **rest: Any) -> Callable[[Command], Command]:
    """An option that takes a whole number from 1 on."""
    rest = {"show_default": default is not None, **rest}
    return click.option(name, type=click.IntRange(min=1), default=default, help=help, **rest)


def above_zero(name: str, default: float, help: str) -> Callable[[Command], Command]:
    """An option that takes a finite number above 0."""
    kind = FiniteRange(min=0, min_open=True)
    return click.option(name, type=kind, default=default, show_default=True, help=help)


def refuse_two_answers(options: Mapping[str, Any]) -> None:
    """Refuse options that each ask for another form of the answer.

    Raises:
        click.UsageError: if there are two.
    """
    given = [name for key, name in _ANSWERS.items() if options.get(key)]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} cannot be combined; choose one")


class NamedPath(click.Path):
    """The type of a path that is not empty: an empty path would mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


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
