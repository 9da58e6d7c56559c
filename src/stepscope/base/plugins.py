"""Rules and what-if changes of other installed packages, by entry points.

A package declares them in its `pyproject.toml`; each value names one object or a list of them:

    [project.entry-points."stepscope.rules"]     # of `stepscope.analyze.Rule`
    mine = "my_package.rules:RULES"

    [project.entry-points."stepscope.changes"]   # of `stepscope.models.whatif.Change`
    mine = "my_package.changes:NO_LOGGING"

They are listed, documented and applied like the built-in ones, which they cannot replace. Only the
commands that use them import such a package. One that cannot be imported costs a line on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from stepscope.errors import one_line

Declared = TypeVar("Declared")


def plugins(group: str, kind: type[Declared]) -> Iterator[Declared]:
    """The `rules` or `changes` of some class that other packages declare, by their entry points' names."""
    for entry in sorted(entry_points(group=f"stepscope.{group}")):
        yield from _declared_by(entry, kind)


def _declared_by(entry: EntryPoint, kind: type[Declared]) -> list[Declared]:
    try:
        loaded = entry.load()
    except Exception as error:  # of any kind, in foreign code
        return _skipped(entry, f"{type(error).__name__}: {one_line(error)}")
    found = list(loaded) if isinstance(loaded, (list, tuple)) else [loaded]
    if not all(isinstance(each, kind) for each in found):
        return _skipped(entry, f"it is no {kind.__name__} and no list of them")
    return found


def _skipped(entry: EntryPoint, reason: str) -> list[Declared]:
    print(f"stepscope: ignored {entry.group} of {entry.value}: {reason}", file=sys.stderr)
    return []
