"""The hover text of a line: its costs by part, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.lsp.current_costs import Mark
from stepscope.lsp.measured_costs import LineCost, Part
from stepscope.lsp.short_numbers import milliseconds, percent, size

_MOST_ROWS = 8


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
            yield f"| {title} | per step | |"
            yield "|:--|--:|--:|"
            yield from (_row(part, cost) for part in _shown(parts))
            yield ""


def _shown(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    rest = parts[_MOST_ROWS:]
    if len(rest) < 2:
        return parts
    return (*parts[:_MOST_ROWS], Part(f"{len(rest)} more", sum(part.ms for part in rest)))


def _row(part: Part, cost: LineCost) -> str:
    name = (part.name or "the model itself").replace("`", "'").replace("|", "\\|")
    share = part.ms / cost.run_ms if cost.run_ms else 0.0
    return f"| `{name}` | {milliseconds(part.ms)} | {percent(share)} |"
