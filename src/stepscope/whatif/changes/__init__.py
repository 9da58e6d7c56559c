"""The changes that users can name: one file each, whose `CHANGE` declares it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from stepscope.whatif.change import GROUPS, Change


def find_changes() -> dict[str, Change]:
    """Every change by name, group by group."""
    names = (module.name for module in iter_modules(__path__))
    changes: list[Change] = [import_module(f"{__name__}.{name}").CHANGE for name in names]
    return {one.name: one for one in sorted(changes, key=lambda one: GROUPS.index(one.group))}
