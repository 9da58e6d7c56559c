"""The changes that users can name, and where they are found.

A module of this package or of `stepscope.models.whatif.papers` declares its changes as module
constants. Other packages add theirs by an entry point of the group `stepscope.changes`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules

from stepscope.base.plugins import plugins
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
