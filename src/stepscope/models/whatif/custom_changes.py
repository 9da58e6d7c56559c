"""Changes of a user's Python file: plain functions from graph to graph."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable, Container
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb

from stepscope.errors import ChangeError, StepscopeError, one_line
from stepscope.graph import Graph
from stepscope.models.whatif.change import Change


def load_changes(path: str | Path, taken: Container[str] = ()) -> dict[str, Change]:
    """The list `CHANGES` of a Python file, by name. This runs the file.

    Its items are functions from graph to graph, or `Change`s of them.

    Args:
        taken: names that other changes have.

    Raises:
        ChangeError: if the file cannot be run, has no such list, or a name is taken.
    """
    try:
        listed = runpy.run_path(str(path)).get("CHANGES")
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ChangeError(f"{path}: cannot load changes: {reason}") from error
    if not isinstance(listed, list) or not all(map(callable, map(_function, listed))):
        raise ChangeError(
            f"{path}: expected a list CHANGES of functions from graph to graph, found {type(listed).__name__}"
        )
    changes = {change.name: change for change in map(_change, listed)}
    if names := [name for name in changes if name in taken]:
        raise ChangeError(f"{path}: {names[0]} is the name of another change; choose a new one")
    return changes


def _function(item: object) -> object:
    return item.function if isinstance(item, Change) else item


def _change(item: Change | Callable[..., Graph]) -> Change:
    change = item if isinstance(item, Change) else Change(item, basis="a function of your own")
    return replace(change, function=_reporting(change.function))


def _reporting(function: Callable[..., Graph]) -> Callable[..., Graph]:
    """The function, whose errors name it and the line, and which returns nothing but a graph."""

    @functools.wraps(function)
    def changed(graph: Graph, **values: object) -> Graph:
        try:
            result = function(graph, **values)
        except StepscopeError:
            raise
        except Exception as error:
            line = _line(error, function)
            raise ChangeError(
                f"{function.__name__}{line}: {type(error).__name__}: {one_line(error)}"
            ) from error
        if not isinstance(result, Graph):
            raise ChangeError(
                f"{function.__name__}: expected it to return a Graph, found {type(result).__name__}"
            )
        return result

    return changed


def _line(error: Exception, function: Callable[..., Graph]) -> str:
    """Where the function's own file was left last, as `, line 12`; empty if it was not."""
    frames = walk_tb(error.__traceback__)
    own = [line for frame, line in frames if frame.f_code.co_filename == function.__code__.co_filename]
    return f", line {own[-1]}" if own else ""
