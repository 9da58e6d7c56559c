"""A place in a source file that sets the batch size."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Site:
    """One number in a file.

    Attributes:
        kind: what it is: provider, option, loader, parameter, field, constant, attribute, entry,
            argument or setting (of a YAML, JSON or TOML file).
        path: the file.
        name: what it is called there: `batch_size`, `--batch-size`, `train.batch_size`.
        value: the number.
        text: how it is written: `32`, `0x20`, `4 * 8`, `"32"`.
        start: first character, counted from the start of the text.
        end: the character after the last.
        line: line, from 1.
        column: character in the line, from 0.
        role: what the batches are for, train or evaluate.
        option: the command line option that sets it, where there is one.
        provider: the provider function whose default it is, where it is one.
    """

    kind: str
    path: str
    name: str
    value: int
    text: str
    start: int
    end: int
    line: int
    column: int
    role: str = "train"
    option: str | None = None
    provider: str | None = None

    @property
    def where(self) -> str:
        """`train.py:12`."""
        return f"{self.path}:{self.line}"

    @property
    def sentence(self) -> str:
        """A description for users: `the option --batch-size, 32, at train.py:12`."""
        return f"{_WORDS[self.kind]} {self.name}, {self.value}, at {self.where}"

    def at(self, **changes: Any) -> Site:
        """The same place with other facts."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class SiteChoice:
    """One of several candidates, recognized again after other lines of the file were edited.

    Attributes:
        path: the file.
        name: what it is called there.
        place: its place among the candidates of that name in that file, from 0.
        count: how many there are; with more or fewer, it is no longer known which was meant.
    """

    path: str
    name: str
    place: int
    count: int

    @classmethod
    def of(cls, site: Site, candidates: Iterable[Site]) -> SiteChoice:
        """The choice of a site among candidates."""
        alike = _alike(candidates, site.path, site.name)
        return cls(site.path, site.name, [one.start for one in alike].index(site.start), len(alike))

    def among(self, candidates: Iterable[Site]) -> Site | None:
        """The chosen candidate, or None if it is not clear which one it is."""
        alike = _alike(candidates, self.path, self.name)
        return alike[self.place] if len(alike) == self.count else None


def _alike(sites: Iterable[Site], path: str, name: str) -> list[Site]:
    named = (site for site in sites if site.name == name)
    same = (site for site in named if os.path.realpath(site.path) == os.path.realpath(path))
    return sorted(same, key=lambda site: site.start)


_WORDS = {
    "provider": "the default of the input provider,",
    "option": "the command line option",
    "loader": "the loader's argument",
    "parameter": "the default of the parameter",
    "field": "the field",
    "constant": "the variable",
    "attribute": "the attribute",
    "entry": "the dictionary entry",
    "argument": "the argument",
    "setting": "the setting",
}
