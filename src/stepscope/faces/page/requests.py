"""A request's parameters, parsed and checked, and the Structs of answers."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

from stepscope.errors import ServeError

Answer = TypeVar("Answer", bound=msgspec.Struct)


class Query:
    """Parameters by name; an empty one counts as missing."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name: value for name, value in (values or {}).items() if value}

    def text(self, name: str) -> str:
        """A text, empty if missing."""
        return self._values.get(name, "")

    def number(self, name: str) -> int | None:
        """A whole number of at most 18 digits, None if missing; raises ServeError if it is anything else."""
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ServeError(f"expected {name} to be a whole number, found {text[:40]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether it is 1; raises ServeError if it is neither 0 nor 1."""
        text = self._values.get(name, "0")
        if text not in ("0", "1"):
            raise ServeError(f"expected {name} to be 0 or 1, found {text[:40]!r}")
        return text == "1"


def filled(kind: type[Answer], source: object, /, **others: Any) -> Answer:
    """A Struct with the attributes of the same names that an object has, arrays as lists, and others."""
    values = ((name, getattr(source, name)) for name in kind.__struct_fields__ if name not in others)
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values}
    return kind(**plain, **others)
