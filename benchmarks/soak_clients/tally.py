"""What the clients of a soak test asked, and what was wrong with the answers."""

from __future__ import annotations

from collections import Counter

_KEPT = 20


class Tally:
    """Counts by kind of client, and the first errors in words."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.errors: list[str] = []
        self.error_count = 0

    def count(self, kind: str, number: int = 1) -> None:
        """Count requests, each of which had the answer it must have."""
        self.asked[kind] += number

    def wrong(self, what: str) -> None:
        """Count an answer that was missing or not what it must be."""
        self.error_count += 1
        if len(self.errors) < _KEPT:
            self.errors.append(what[:500])

    def check(self, right: bool, kind: str, what: str) -> None:
        """Count a request, as wrong if it had the wrong answer."""
        self.count(kind)
        if not right:
            self.wrong(f"{kind}: {what}")

    def rows(self) -> list[str]:
        """One line for each kind."""
        return [f"  {count:>9,}  {kind}" for kind, count in sorted(self.asked.items())]
