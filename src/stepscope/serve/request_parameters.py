"""The parameters of a request, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.errors import ServeError


class Query:
    """Parameters by name; an empty one counts as missing.

    Args:
        values: as decoded from a URL.
    """

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name: value for name, value in (values or {}).items() if value}

    def text(self, name: str) -> str:
        """A text, empty if missing."""
        return self._values.get(name, "")

    def number(self, name: str) -> int | None:
        """A whole number of at most 18 digits, None if missing.

        Raises:
            ServeError: if it is anything else.
        """
        text = self._values.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ServeError(f"expected {name} to be a whole number, found {text[:40]!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        """Whether it is 1.

        Raises:
            ServeError: if it is neither 0 nor 1.
        """
        text = self._values.get(name, "0")
        if text not in ("0", "1"):
            raise ServeError(f"expected {name} to be 0 or 1, found {text[:40]!r}")
        return text == "1"
