"""What a line does and what each part costs, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.serve.language.costs import Part
from stepscope.serve.language.marks import Mark
from stepscope.serve.language.sizes import milliseconds, percent, size

_MOST_ROWS = 12
_COLUMNS = ("", "forward", "backward", "weights", "activations")


def hover_text(mark: Mark) -> str:
    """A heading and a table with a row for each call that the line makes.

    Args:
        mark: of the line.

    Returns:
        Markdown. Names of modules are code, so nothing in them is formatted.
    """
    cost = mark.cost
    heading = f"**{milliseconds(cost.run_ms)}** a step, {percent(cost.share)} of it"
    if cost.bytes:
        heading += f" · **{size(cost.bytes)}**"
    stale = ["", "*Stale: measured before this line was changed.*"] if mark.stale else []
    return "\n".join([heading, *stale, "", *_table(cost.parts)])


def _table(parts: tuple[Part, ...]) -> Iterable[str]:
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|:--|--:|--:|--:|--:|"
    for part in parts[:_MOST_ROWS]:
        yield _row(part)
    if len(parts) > _MOST_ROWS:
        rest = parts[_MOST_ROWS:]
        yield _row(_sum(f"{len(rest)} more", rest))


def _row(part: Part) -> str:
    label = part.label.replace("`", "'").replace("|", "\\|")
    cells = (
        f"`{label}`",
        milliseconds(part.forward_ms),
        milliseconds(part.backward_ms),
        _size(part.weight_bytes),
        _size(part.activation_bytes),
    )
    return "| " + " | ".join(cells) + " |"


def _sum(label: str, parts: tuple[Part, ...]) -> Part:
    return Part(
        label,
        sum(part.forward_ms for part in parts),
        sum(part.backward_ms for part in parts),
        sum(part.weight_bytes or 0 for part in parts),
        sum(part.activation_bytes or 0 for part in parts),
    )


def _size(count: int | None) -> str:
    return size(count) if count else ""
