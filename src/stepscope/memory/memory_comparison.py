"""What of the memory grew between two files: the peak by kind, module and line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.memory import memory_facts
from stepscope.memory.memory_facts import MemoryFacts
from stepscope.memory.shares import MemoryShare
from stepscope.trace.trace import Trace

_ALL = 1 << 30


@dataclass(frozen=True)
class MemoryRow:
    """What one kind, module or line holds at the peak, before and after."""

    name: str
    before_bytes: int
    after_bytes: int

    @property
    def growth_bytes(self) -> int:
        """What was added; negative where it shrank."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True)
class MemoryComparison:
    """The peaks of one device in two files; rows with the largest change first.

    Attributes:
        device: number of the device, -1 for the CPU.
        before_bytes, after_bytes: the peaks.
        kinds, modules, lines: what changed in them; without what did not change.
    """

    device: int
    before_bytes: int
    after_bytes: int
    kinds: tuple[MemoryRow, ...]
    modules: tuple[MemoryRow, ...]
    lines: tuple[MemoryRow, ...]

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write."""
        return asdict(self)


def holds_memory(trace: Trace) -> bool:
    """Whether a file holds allocations."""
    return any(len(trace[name]) for name in ("memory", "segments", "memory_events"))


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
