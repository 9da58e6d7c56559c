"""What a change that is applied to a running script tells of itself."""

from __future__ import annotations

from typing import Any, Protocol


class Applied(Protocol):
    """A change in force."""

    def evidence(self) -> dict[str, Any]:
        """What it was applied to: `count` and details; a count of 0 means that nothing changed."""
        ...
