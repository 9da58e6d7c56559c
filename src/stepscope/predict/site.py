"""A place in a source file that sets the batch size."""

from __future__ import annotations

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
        """What a person reads: `the option --batch-size, 32, at train.py:12`."""
        return f"{_WORDS[self.kind]} {self.name}, {self.value}, at {self.where}"

    def at(self, **changes: Any) -> Site:
        """The same place with other facts."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return asdict(self)


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
