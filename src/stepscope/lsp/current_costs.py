"""The costs of a file at the current positions of its lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.lsp.line_mapping import map_lines
from stepscope.lsp.measured_costs import FileCosts, LineCost
from stepscope.lsp.short_numbers import milliseconds, percent, size

_LEAST_SHARE = 0.001  # of the step; what takes less is no mark, but stays in the hover


@dataclass(frozen=True)
class Mark:
    """The cost of one line, in the text as it is now.

    Attributes:
        line: number from 0.
        stale: whether the line reads differently than it was measured.
        cost: what was measured.
    """

    line: int
    stale: bool
    cost: LineCost

    @property
    def shown(self) -> bool:
        """Whether the cost is large enough for a mark next to the line."""
        return self.cost.share >= _LEAST_SHARE or bool(self.cost.bytes)

    @property
    def text(self) -> str:
        """`12.3 ms · 34 % · 45.2 MB`, in brackets where stale; memory alone for what only holds."""
        timed = self.cost.share >= _LEAST_SHARE
        parts = [milliseconds(self.cost.run_ms), percent(self.cost.share)] if timed else []
        if self.cost.bytes:
            parts.append(size(self.cost.bytes))
        text = " · ".join(parts)
        return f"({text})" if self.stale else text


def marks_of(costs: FileCosts, current: Sequence[str]) -> list[Mark]:
    """The marks of a file.

    Args:
        costs: as measured.
        current: the lines as they are now, without their ends.

    Returns:
        Marks by line; those of deleted lines are left out.
    """
    now = map_lines(costs.text, current)
    found = (
        Mark(now[line - 1].line, now[line - 1].stale, cost)
        for line, cost in costs.lines.items()
        if line - 1 in now
    )
    return sorted(found, key=lambda mark: mark.line)
