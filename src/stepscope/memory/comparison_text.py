"""A comparison of two files' memory as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.memory.memory_comparison import MemoryComparison, MemoryRow
from stepscope.memory.memory_text import short_place
from stepscope.summary.numbers import size

if TYPE_CHECKING:
    from rich.console import Console


def print_memory_comparison(console: Console, found: MemoryComparison, rows: int) -> None:
    """Print one device: the peaks, then what changed most.

    Args:
        console: the terminal.
        found: of one device.
        rows: how many changes of each kind are listed.
    """
    from rich.text import Text

    name = "the CPU" if found.device < 0 else f"device {found.device}"
    change = found.after_bytes - found.before_bytes
    console.print()
    console.print(
        Text(f"Memory of {name}: peak {size(found.before_bytes)} before, "
             f"{size(found.after_bytes)} after ({_signed(change)})", "bold"),
        soft_wrap=True,
    )  # fmt: skip
    for title, part in (
        ("kind", found.kinds), ("module", found.modules), ("line", found.lines),
    ):  # fmt: skip
        _print_rows(console, f"At the peak, by {title}", part[:rows])


def _print_rows(console: Console, title: str, rows: Sequence[MemoryRow]) -> None:
    from stepscope.summary.text_tables import plain_table

    if not rows:
        return
    table = plain_table(title, "", "before>", "after>", "change>")
    for row in rows:
        table.add_row(
            short_place(row.name or "(unknown)"), size(row.before_bytes), size(row.after_bytes),
            _signed(row.growth_bytes),
        )  # fmt: skip
    console.print(table)


def _signed(amount: int) -> str:
    return f"{'+' if amount >= 0 else '-'}{size(abs(amount))}"
