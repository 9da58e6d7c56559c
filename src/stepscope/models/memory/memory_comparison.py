"""What of the memory grew between two files: the peak by kind, module and line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stepscope.facts.summary.numbers import size
from stepscope.models.memory import memory_facts
from stepscope.models.memory.device_facts import MemoryFacts, MemoryShare
from stepscope.models.memory.memory_text import short_place
from stepscope.trace.trace import Trace

if TYPE_CHECKING:
    from rich.console import Console


_ALL = 1 << 30  # rows: more than any part of a peak has


class MemoryRow(msgspec.Struct, frozen=True):
    """What one kind, module or line holds at the peak, before and after."""

    name: str
    before_bytes: int
    after_bytes: int

    @property
    def growth_bytes(self) -> int:
        """What was added; negative where it shrank."""
        return self.after_bytes - self.before_bytes


class MemoryComparison(msgspec.Struct, frozen=True):
    """The peaks of one device in two files; rows with the largest change first."""

    device: int  # number of the device, -1 for the CPU
    before_bytes: int  # the peak
    after_bytes: int  # the peak
    kinds: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change
    modules: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change
    lines: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change


def compare_memory(before: Trace, after: Trace) -> list[MemoryComparison]:
    """The devices that two files have in common.

    Args:
        before, after: memory snapshots, or captures made with `--memory`.

    Raises:
        TraceError: if one of them holds no allocation.
    """
    old = {facts.device: facts for facts in memory_facts(before, _ALL)}
    pairs = ((old.get(facts.device), facts) for facts in memory_facts(after, _ALL))
    return [_compare(first, second) for first, second in pairs if first is not None]


def _compare(before: MemoryFacts, after: MemoryFacts) -> MemoryComparison:
    return MemoryComparison(
        device=after.device,
        before_bytes=before.peak_bytes,
        after_bytes=after.peak_bytes,
        kinds=_rows(before.kinds, after.kinds),
        modules=_rows(before.modules, after.modules),
        lines=_rows(before.lines, after.lines),
    )


def _rows(before: Iterable[MemoryShare], after: Iterable[MemoryShare]) -> tuple[MemoryRow, ...]:
    old = {share.name: share.bytes for share in before}
    new = {share.name: share.bytes for share in after}
    rows = [MemoryRow(name, old.get(name, 0), new.get(name, 0)) for name in {**old, **new}]
    changed = [row for row in rows if row.growth_bytes]
    return tuple(sorted(changed, key=lambda row: (-abs(row.growth_bytes), row.name)))


def print_memory_comparison(console: Console, found: MemoryComparison, rows: int) -> None:
    """Print one device: the peaks, then what changed most."""
    from rich.text import Text

    name = "the CPU" if found.device < 0 else f"device {found.device}"
    change = found.after_bytes - found.before_bytes
    console.print()
    console.print(
        Text(
            f"Memory of {name}: peak {size(found.before_bytes)} before, "
            f"{size(found.after_bytes)} after ({_signed(change)})",
            "bold",
        ),
        soft_wrap=True,
    )
    for title, part in (("kind", found.kinds), ("module", found.modules), ("line", found.lines)):
        _print_rows(console, f"At the peak, by {title}", part[:rows])


def _print_rows(console: Console, title: str, rows: Sequence[MemoryRow]) -> None:
    from stepscope.facts.summary.text_tables import plain_table

    if not rows:
        return
    table = plain_table(title, "", "before>", "after>", "change>")
    for row in rows:
        table.add_row(
            short_place(row.name or "(unknown)"),
            size(row.before_bytes),
            size(row.after_bytes),
            _signed(row.growth_bytes),
        )
    console.print(table)


def _signed(amount: int) -> str:
    return f"{'+' if amount >= 0 else '-'}{size(abs(amount))}"
