"""Warnings collected while reading: the first message of each kind, and how many there were."""

from __future__ import annotations


class WarningLog:
    """Counts warnings by code; call it with (code, message).

    Example:
        >>> log = WarningLog()
        >>> log("odd", "first"); log("odd", "second")
        >>> log.rows()
        [('odd', 'first', 2)]
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def __call__(self, code: str, message: str, count: int = 1) -> None:
        if count:
            first, before = self._found.get(code, (message, 0))
            self._found[code] = (first, before + count)

    def add(self, other: WarningLog) -> None:
        """Take over the warnings of another log, after those of this one."""
        for code, message, count in other.rows():
            self(code, message, count)

    def rows(self) -> list[tuple[str, str, int]]:
        """(code, first message, count) in order of first appearance."""
        return [(code, message, count) for code, (message, count) in self._found.items()]
