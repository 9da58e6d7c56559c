"""The changes that users can name, and where they are found.

A module of this package or of `stepscope.models.whatif.papers` declares its changes as module
constants. Other packages add theirs by an entry point of the group `stepscope.changes`.
"""

import functools
import runpy
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from pkgutil import iter_modules
from traceback import walk_tb

from stepscope.base.input_files import content_of
from stepscope.base.plugins import plugins
from stepscope.errors import ChangeError, failure
from stepscope.graph import Graph
from stepscope.models.whatif import papers
from stepscope.models.whatif.change import GROUPS, Change


class NamedChanges(Mapping[str, Change]):
    """Every change by name, found at the first use: packages that add one import this one."""

    @cached_property
    def _by_name(self) -> dict[str, Change]:
        return find_changes()

    def __getitem__(self, name: str) -> Change:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def find_changes() -> dict[str, Change]:
    """Every change by name, group by group; one of another package never replaces a built-in."""
    folders = ((__name__, __path__), (papers.__name__, papers.__path__))
    built_in = [
        change
        for name, path in folders
        for module in iter_modules(path)
        for change in vars(import_module(f"{name}.{module.name}")).values()
        if isinstance(change, Change)
    ]
    every = {change.name: change for change in sorted(built_in, key=lambda change: change.name)}
    for change in plugins("changes", Change):
        every.setdefault(change.name, change)
    place = {group: number for number, group in enumerate(GROUPS)}  # an unknown one comes last
    ordered = sorted(every.values(), key=lambda change: place.get(change.group, len(place)))
    return {change.name: change for change in ordered}


# -- changes of a user's Python file: plain functions from graph to graph


def load_changes(path: str | Path, taken: Container[str] = ()) -> dict[str, Change]:
    """The list `CHANGES` of a Python file, by name: functions from graph to graph, or `Change`s of them. This
    runs the file; raises ChangeError if that fails, it has no such list, or a name is taken."""
    try:
        listed = runpy.run_path(str(path)).get("CHANGES") if content_of(path) else None
    except BaseException as error:
        raise ChangeError(f"{path}: cannot load changes: {failure(error)}") from error
    items = listed if isinstance(listed, list) else [listed]
    functions = [item.function if isinstance(item, Change) else item for item in items]
    wrong = [type(item).__name__ for item in functions if not isfunction(item)]
    if wrong:
        raise ChangeError(
            f"{path}: expected a list CHANGES of functions from graph to graph, found {wrong[0]}"
        )
    changes: dict[str, Change] = {}
    for change in map(_change, items):
        if change.name in taken or change.name in changes:
            raise ChangeError(f"{path}: {change.name} is the name of another change; choose a new one")
        changes[change.name] = change
    return changes


def _change(item: Change | Callable[..., Graph]) -> Change:
    change = item if isinstance(item, Change) else Change(item, basis="a function of your own")
    return replace(change, function=_reporting(change.function))


def _reporting(function: Callable[..., Graph]) -> Callable[..., Graph]:
    """The function, whose errors name it and the line, and which returns nothing but a graph."""

    @functools.wraps(function)
    def changed(graph: Graph, **values: object) -> Graph:
        try:
            result = function(graph, **values)
        except BaseException as error:
            raise ChangeError(f"{function.__name__}{_line(error, function)}: {failure(error)}") from error
        if not isinstance(result, Graph):
            raise ChangeError(
                f"{function.__name__}: expected it to return a Graph, found {type(result).__name__}"
            )
        return result

    return changed


def _line(error: BaseException, function: Callable[..., Graph]) -> str:
    """Where the function's own file was left last, as `, line 12`; empty if it was not."""
    frames = walk_tb(error.__traceback__)
    own = [line for frame, line in frames if frame.f_code.co_filename == function.__code__.co_filename]
    return f", line {own[-1]}" if own else ""
