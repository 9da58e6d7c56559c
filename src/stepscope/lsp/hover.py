"""The hover text of a line: its costs by part, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.lsp.current_costs import Mark
from stepscope.lsp.measured_costs import LineCost, Part
from stepscope.lsp.short_numbers import milliseconds, percent, size

_MOST_ROWS = 8
_Row = tuple[str, str, str]


def hover_text(mark: Mark) -> str:
    """A heading, forward and backward, memory, and where the time goes.

    Args:
        mark: of the line.

    Returns:
        Markdown. Names of modules are code, so nothing in them is formatted.
    """
    return "\n".join([*_head(mark), "", *_table(mark.cost)])


def _head(mark: Mark) -> Iterator[str]:
    cost = mark.cost
    both = (milliseconds(cost.forward_ms), milliseconds(cost.backward_ms))
    held = {"weights": cost.weight_bytes, "activations": cost.activation_bytes}
    parts = {
        f"**{milliseconds(cost.run_ms)}** per step, {percent(cost.share)} of it": cost.run_ms,
        "*Stale: this line has changed since it was measured.*": mark.stale,
        "forward {}, backward {}".format(*both): cost.run_ms,
        ", ".join(f"{name} {size(count)}" for name, count in held.items() if count): cost.bytes,
    }
    yield "\n\n".join(text for text, shown in parts.items() if shown)


def _table(cost: LineCost) -> Iterator[str]:
    for title, parts in (("module", cost.modules), ("operator", cost.operators)):
        if parts:
            rows = [_row(part, cost) for part in _shown(parts)]
            yield from _aligned([(title, "per step", ""), *rows])
            yield ""


def _aligned(rows: Sequence[_Row]) -> Iterator[str]:
    """A table, the first row its head; aligned as text too, which is how a terminal shows it."""
    name, *numbers = (max(map(_width, column)) for column in zip(*rows, strict=True))
    lines = [_line(row, name, numbers) for row in rows]
    rule = "".join(f"{'-' * (width + 1)}:|" for width in numbers)
    yield from (lines[0], f"|:{'-' * (name + 1)}|{rule}", *lines[1:])


def _line(row: _Row, name: int, numbers: Sequence[int]) -> str:
    first, *rest = row
    cells = [f"{text:>{width}}" for text, width in zip(rest, numbers, strict=True)]
    return f"| {' | '.join([first + ' ' * (name - _width(first)), *cells])} |"


def _width(cell: str) -> int:
    """Without what marks code, which is not shown."""
    return len(cell.replace("`", ""))


def _shown(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    rest = parts[_MOST_ROWS:]
    if len(rest) < 2:
        return parts
    return (*parts[:_MOST_ROWS], Part(f"{len(rest)} more", sum(part.ms for part in rest)))


def _row(part: Part, cost: LineCost) -> _Row:
    name = (part.name or "the model itself").replace("`", "'").replace("|", "\\|")
    share = part.ms / cost.run_ms if cost.run_ms else 0.0
    return f"`{name}`", milliseconds(part.ms), percent(share)
