"""Readers, rules, what-if changes and commands of other installed packages, by entry points.

A package declares them in its `pyproject.toml`, as docs/reference/extensions.md shows. They are
listed, documented and applied like the built-in ones, which they cannot replace. Only the commands
that use them import such a package. One that cannot be imported costs a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from stepscope.errors import failure

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Declared = TypeVar("Declared")
OUTSIDE = "read by another package"  # property of traces that no cache keeps: that code may change


def plugins(group: str, kind: type[Declared]) -> Iterator[Declared]:
    """The readers, rules or changes that other packages declare, by their entry points' names."""
    for entry in _entry_points(group):
        yield from _declared_by(entry, kind)


def plugin_names(group: str) -> list[str]:
    """The names of a group's entry points; nothing is imported."""
    return [entry.name for entry in _entry_points(group)]


def named_plugin(group: str, name: str, kind: type[Declared]) -> Declared | None:
    """What other packages declare under one name; None if nothing usable is there."""
    named = (entry for entry in _entry_points(group) if entry.name == name)
    return next((declared for entry in named for declared in _declared_by(entry, kind)), None)


def _entry_points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # here, since it takes 30 ms and few commands ask

    return sorted(entry_points(group=f"stepscope.{group}"))


def _declared_by(entry: EntryPoint, kind: type[Declared]) -> list[Declared]:
    try:
        loaded = entry.load()
    except BaseException as error:  # of any kind, in foreign code
        return _skipped(entry, failure(error))
    declared = list(loaded) if isinstance(loaded, (list, tuple)) else [loaded]
    if not all(isinstance(each, kind) for each in declared):
        return _skipped(entry, f"it is no {kind.__name__} and no list of them")
    return declared


def _skipped(entry: EntryPoint, reason: str) -> list[Declared]:
    print(f"stepscope: ignored {entry.group} of {entry.value}: {reason}", file=sys.stderr)
    return []
