"""The facts of a memory snapshot as text for a terminal."""

from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from stepscope.base.numbers import percent, size
from stepscope.facts.summary.text_tables import bar_for, plain_table
from stepscope.models.memory import memory_facts
from stepscope.models.memory.device_facts import MemoryFacts, MemoryShare, OutOfMemory
from stepscope.models.memory.memory_findings import MemoryFinding, find_problems
from stepscope.models.memory.segments import Fragmentation
from stepscope.trace.trace import Trace

_LINES = 8  # rows of modules and of lines; chosen: the report fits on a screen


def print_memory(console: Console, facts: MemoryFacts) -> None:
    """Print one device: the verdict first, then what holds memory, then what to do."""
    findings = find_problems(facts)
    device = facts.device_name or f"device {facts.device}"
    console.print(Text(f"{facts.source}   {device} · {_extent(facts)}", "bold"))
    console.print()
    held, most = f"{size(facts.peak_bytes)} allocated", facts.reserved_peak_bytes
    held = f"Peak {held}" if facts.entries else f"{held} at the snapshot; the peak is not known"
    reserved = "" if most is None else f"  {size(most)} reserved{' at most' * bool(facts.entries)}"
    console.print(Text(held, "bold"), reserved)
    console.print(Text(f"▶ {verdict(facts, findings)}", "bold yellow"), soft_wrap=True)
    if facts.has_lifetimes or len(facts.kinds) > 1:
        _print_shares(console, f"At the {facts.moment}, by kind", facts.kinds, facts.peak_bytes)
    for title, shares in (
        ("stage", facts.stages),
        ("module", facts.modules[:_LINES]),
        ("line", facts.lines[:_LINES]),
    ):
        if shares:
            _print_shares(console, f"At the {facts.moment}, by {title}", shares, facts.peak_bytes)
    if facts.unassigned_bytes and facts.has_lifetimes:
        share = percent(facts.unassigned_bytes / max(1, facts.peak_bytes))
        earlier = facts.unassigned_before_bytes if facts.entries else 0
        before = f"; {size(earlier)} were allocated before the history began" if earlier else ""
        console.print(f"of unknown purpose: {size(facts.unassigned_bytes)}, {share}{before}", style="dim")
    if facts.fragmentation:
        _print_state(console, facts.fragmentation)
    for finding in findings:
        _print_finding(console, finding)
    if not findings and facts.has_lifetimes:
        console.print("\nNo problem found.")


def verdict(facts: MemoryFacts, findings: Sequence[MemoryFinding]) -> str:
    """What fills the memory, in one sentence."""
    if facts.out_of_memory:
        return _out_of_memory(facts.out_of_memory[-1])
    if findings and findings[0].rule in ("growing_memory", "kept_graph"):
        return f"Memory grows from step to step: {findings[0].what}"
    top = facts.kinds[0] if facts.kinds else None
    if top is None:
        return "Nothing is allocated."
    if top.name == "unknown" and not facts.has_lifetimes:
        return (
            "What it holds is not known: the trace records sizes without addresses. "
            "`stepscope run --memory` records both."
        )
    if top.name == "unknown":
        return f"The purpose of {percent(top.bytes / max(1, facts.peak_bytes))} of it is unknown."
    hold = "hold" if top.name.endswith("s") else "holds"  # the optimizer state
    return f"{top.name.capitalize()} {hold} {percent(top.bytes / max(1, facts.peak_bytes))} of it."


def _out_of_memory(failed: OutOfMemory) -> str:
    asked = "memory was" if failed.requested is None else f"{size(failed.requested)} were"
    where = f" at {short_place(failed.place)}" if failed.place else ""
    inside = f" in {failed.module}" if failed.module else ""
    request = f"Out of memory: {asked} requested{where}{inside}"
    if failed.device_free is None or failed.reserved is None:
        return f"{request}, with {size(failed.allocated)} allocated."
    unused = max(0, failed.reserved - failed.allocated)
    return (
        f"{request} with {size(failed.device_free)} free on the device; {size(unused)} of "
        f"{size(failed.reserved)} reserved were not in use."
    )


def _extent(facts: MemoryFacts) -> str:
    if not facts.entries:
        return "no history: the state at the snapshot"
    without = "" if facts.has_lifetimes else ", without addresses: lifetimes are unknown"
    return f"{facts.entries:,} entries of history{without}"


def _print_shares(console: Console, title: str, shares: Sequence[MemoryShare], whole: int) -> None:
    counted = any(share.count for share in shares)
    table = plain_table(title, "~", ">", ">", "", *(["allocations>"] if counted else []))
    for share in shares:
        part = share.bytes / max(1, whole)
        table.add_row(
            short_place(share.name or "(unknown)", console.width // 2 - 4),
            size(share.bytes),
            percent(part),
            bar_for(part, "green", console.width),
            *([f"{share.count:,}"] if counted else []),
        )
    console.print(table)


def short_place(name: str, width: int = 1 << 30) -> str:
    """`…/folder/file.py:12 function`, in so many characters: the end of a path says most."""
    parts = name.replace("\\", "/").split("/")
    text = name if len(parts) <= 3 else "…/" + "/".join(parts[-2:])
    return text if len(text) <= width else f"…{text[1 - width :]}"


def _print_state(console: Console, state: Fragmentation) -> None:
    table = plain_table("Reserved, at the snapshot", "", ">", ">")
    for name, value in (
        ("in use", state.in_use),
        ("free, in segments that blocks in use pin", state.pinned),
        ("free, can be returned (cached)", state.cached),
        *([("free, kept while CUDA graphs live (private pools)", state.private)] * bool(state.private)),
    ):
        table.add_row(name, size(value), percent(value / max(1, state.reserved)))
    console.print(table)
    console.print(f"largest free block: {size(state.largest_free)}", style="dim")


def _print_finding(console: Console, finding: MemoryFinding) -> None:
    console.print()
    console.print(Text.assemble((finding.what, "bold"), "  ", (finding.rule, "dim")), soft_wrap=True)
    console.print(f"  {finding.advice}", soft_wrap=True)
    if finding.place:
        console.print(f"  at {short_place(finding.place)}", style="dim", soft_wrap=True)
    console.print(f"  could give back {size(finding.gain_bytes)} at most", style="dim")


# -- what of the memory grew between two files: the peak by kind, module and line

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

    device: int  # number of the device after, -1 for the CPU
    before_device: int  # its number before, which differs where each file has one GPU
    before_bytes: int  # the peak
    after_bytes: int  # the peak
    kinds: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change
    modules: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change
    lines: tuple[MemoryRow, ...]  # what changed in the peak; without what did not change


def compare_memory(before: Trace, after: Trace) -> list[MemoryComparison]:
    """The devices that two files, snapshots or recordings, have in common, and the only GPU of each;
    raises TraceError if one of them holds no allocation."""
    sides = [memory_facts(trace, _ALL) for trace in (before, after)]
    gpus = [sum(facts.device >= 0 for facts in side) for side in sides]
    last = 0 if gpus == [1, 1] else _ALL  # the only GPU of each may have any number
    old = {min(facts.device, last): facts for facts in sides[0]}
    pairs = ((old.get(min(facts.device, last)), facts) for facts in sides[1])
    return [_compare(first, second) for first, second in pairs if first is not None]


def _compare(before: MemoryFacts, after: MemoryFacts) -> MemoryComparison:
    return MemoryComparison(
        device=after.device,
        before_device=before.device,
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
    name = "the CPU" if found.device < 0 else f"device {found.before_device}"
    name += f", then device {found.device}" * (found.device != found.before_device)
    console.print()
    console.print(
        Text(
            f"Memory of {name}: peak {size(found.before_bytes)} before, "
            f"{size(found.after_bytes)} after ({_signed(found.after_bytes - found.before_bytes)})",
            "bold",
        ),
        soft_wrap=True,
    )
    for title, part in (("kind", found.kinds), ("module", found.modules), ("line", found.lines)):
        _print_rows(console, f"At the peak, by {title}", part[:rows])


def _print_rows(console: Console, title: str, rows: Sequence[MemoryRow]) -> None:
    if not rows:
        return
    table = plain_table(title, "~", "before>", "after>", "change>")
    for row in rows:
        table.add_row(
            short_place(row.name or "(unknown)", console.width // 2),
            size(row.before_bytes),
            size(row.after_bytes),
            _signed(row.growth_bytes),
        )
    console.print(table)


def _signed(amount: int) -> str:
    return f"{'+' if amount >= 0 else '-'}{size(abs(amount))}"
