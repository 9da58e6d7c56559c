"""The operations that levels list: single ones, and runs that are put together into sections.

Source: HOTLINE section 4.5. A run of one name, copies of a module and, among many operations, a
pattern of names that repeats become one unit each; then a series of units that are all tiny becomes
a section. So what is not tiny, alone or by being repeated, is never hidden among tiny operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.facts.timeline.lanes import Contents, Lanes
from stepscope.facts.timeline.operation import TINY, Operation, Spread
from stepscope.facts.timeline.operation_costs import Costs
from stepscope.facts.timeline.operation_labels import range_name, summary_names
from stepscope.trace.intervals import index_pairs
from stepscope.trace.row_order import begins_run, greatest_of_runs
from stepscope.trace.sets import mask_of

_LEAST_BLOCKS = 5  # fewer are as quickly compared side by side
_LEAST_COUNT = 3  # copies of a pattern: two may be chance
_LONGEST_PERIOD = 64  # operations of a pattern; the search takes time for each period


@dataclass(frozen=True)
class SiblingOperations:
    """What the rules ask of sibling operations in order of time, shapes (operations,)."""

    name: Ids  # a code that operations of one name share
    block: Ids  # a code that copies of one block share, -1 for others
    cpu_ns: Times  # CPU time
    device_ns: Times  # device busy time

    def part(self, first: int, end: int) -> SiblingOperations:
        """The operations from `first` to before `end`."""
        columns = (self.name, self.block, self.cpu_ns, self.device_ns)
        return SiblingOperations(*(column[first:end] for column in columns))


def find_sections(operations: SiblingOperations, first: Ids, parent_ns: Times, tiny: float = TINY) -> Ids:
    """Cut sibling operations into sections and single operations, lane by lane.

    A series is tiny if each of its units, on the CPU and on the device, takes less than `tiny` of
    the parent. A section that holds everything would only repeat its parent: its operations are
    listed alone if they are few (2 / tiny), else cut into pieces that reach the threshold.

    Args:
        operations: of all lanes, one after the other; none is empty.
        first: lane i holds the operations from `first[i]` to before `first[i + 1]`, (lanes + 1,).
        parent_ns: runtime of each lane's parent, its longer side, shape (lanes,).
        tiny: share of it below which an operation is tiny.

    Returns:
        Bounds: section i holds the operations from `bounds[i]` to before `bounds[i + 1]`; int64,
        shape (sections + 1,).
    """
    counts = np.diff(first)
    lane = np.repeat(np.arange(len(counts)), counts)
    begins = mask_of(first[:-1], len(lane))
    repeats = {
        one: find_repeats(operations.name[first[one] : first[one + 1]])
        for one in np.flatnonzero(counts > 2 / tiny).tolist()
    }
    placed = [replace(one, first=one.first + first[of]) for of in repeats for one in repeats[of]]
    starts = np.flatnonzero(~_joined(operations, begins, placed))
    units = _summed(operations, starts)
    is_tiny = np.maximum(units.cpu_ns, units.device_ns) < tiny * parent_ns[lane[starts]]
    starts = starts[~(is_tiny & np.append(False, is_tiny[:-1])) | begins[starts]]
    whole = (np.bincount(lane[starts], minlength=len(counts)) == 1) & (counts > 1)
    opened = [np.flatnonzero(whole[lane] & (counts <= 2 / tiny)[lane])]
    for one in repeats:
        if whole[one]:
            opened.append(first[one] + _pieces_of_all(operations.part(first[one], first[one + 1]), tiny))
    return np.append(np.unique(np.concatenate([starts, *opened])), len(lane))


def _pieces_of_all(operations: SiblingOperations, tiny: float) -> Ids:
    """Where the parts of what would be one section begin: copies of a pattern, or of series."""
    copies = np.arange(0, len(operations.name), whole_period(operations.name))
    return copies[_pieces(_summed(operations, copies), tiny)]


def _summed(operations: SiblingOperations, starts: Ids) -> SiblingOperations:
    return SiblingOperations(
        name=operations.name[starts],
        block=operations.block[starts],
        cpu_ns=np.add.reduceat(operations.cpu_ns, starts),
        device_ns=np.add.reduceat(operations.device_ns, starts),
    )


def _joined(operations: SiblingOperations, begins: Mask, repeats: list[Repeat]) -> Mask:
    """Operations that belong to one unit with the one before."""
    same = ~begins_run(operations.name) & ~begins
    copies = ~begins_run(operations.block) & (operations.block >= 0) & ~begins
    lengths = np.diff(np.append(np.flatnonzero(~copies), len(copies)))
    many: Mask = copies & np.repeat(lengths >= _LEAST_BLOCKS, lengths)
    joined: Mask = same | many
    for one in repeats:
        joined[one.first + 1 : one.end] = True
        joined[[one.first]] = joined[one.end : one.end + 1] = False
    return joined


def _pieces(operations: SiblingOperations, tiny: float) -> Ids:
    """Where single operations begin if they are few, else series that reach the threshold."""
    count = len(operations.name)
    if count <= 2 / tiny:
        return np.arange(count)
    runtime = np.maximum(operations.cpu_ns, operations.device_ns) + 1  # none takes no time at all
    least = tiny * runtime.sum()
    large = runtime >= least
    small = np.where(large, 0, runtime)
    piece = ((np.cumsum(small) - small) / least).astype(np.int64)
    after_large = np.append(False, large[:-1])
    return np.flatnonzero(begins_run(piece) | large | after_large)


@dataclass(frozen=True)
class Repeat:
    """`count` copies of `period` operations, the first of them at `first`."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Where the operation after the last copy is."""
        return self.first + self.period * self.count


def find_repeats(names: Ids) -> list[Repeat]:
    """Patterns of different names that repeat at least three times, in order, none in another.

    Where patterns of codes overlap, the one that covers most is taken, of equals the shortest.
    """
    longest = min(_LONGEST_PERIOD, len(names) // _LEAST_COUNT)
    found = [one for period in range(2, longest + 1) for one in _of_period(names, period)]
    found.sort(key=lambda one: (one.first - one.end, one.period))
    taken = np.zeros(len(names), np.bool_)
    kept = []
    for one in found:
        if not taken[one.first : one.end].any():
            taken[one.first : one.end] = True
            kept.append(one)
    return sorted(kept, key=lambda one: one.first)


def whole_period(names: Ids) -> int:
    """The period of the pattern that all names are at least three copies of; else 1."""
    periods = range(1, min(_LONGEST_PERIOD, len(names) // _LEAST_COUNT) + 1)
    whole = (one for one in periods if len(names) % one == 0 and (names[one:] == names[:-one]).all())
    return next(whole, 1)


def _of_period(names: Ids, period: int) -> list[Repeat]:
    """Unbroken runs in which every name equals the name `period` operations before."""
    same = np.concatenate([[False], names[period:] == names[:-period], [False]])
    if np.count_nonzero(same) < (_LEAST_COUNT - 1) * period:
        return []  # as of most periods
    first, end = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
    count = (end - first) // period + 1
    enough = count >= _LEAST_COUNT
    return [
        Repeat(at, period, copies)
        for at, copies in zip(first[enough].tolist(), count[enough].tolist(), strict=True)
        if (names[at : at + period] != names[at]).any()
    ]


def group(
    contents: Contents, lanes: Lanes, costs: Costs, parent_ns: Times, tiny: float
) -> tuple[list[Operation], Ids]:
    """The operations and sections of lanes, in order, and the lane of each; no lane is empty.

    `parent_ns` is the runtime of the operation that is opened, for each lane.
    """
    facts = SiblingOperations(
        name=contents.name_codes(lanes),
        block=contents.blocks[lanes.module],
        cpu_ns=costs.cpu_ns,
        device_ns=costs.device_ns,
    )
    bounds = find_sections(facts, lanes.first, parent_ns, tiny)
    first, alone = bounds[:-1], np.diff(bounds) == 1
    singles = iter(_singles(contents, lanes, first[alone]))
    sections = iter(_sections(contents, lanes, facts, first[~alone], bounds[1:][~alone]))
    return [next(singles if one else sections) for one in alone.tolist()], lanes.lane[first]


def _singles(contents: Contents, lanes: Lanes, chosen: Ids) -> list[Operation]:
    texts, text = contents.names(lanes)
    ids = _ids(contents, lanes, chosen)
    columns = (
        text[chosen],
        lanes.bounds[chosen],
        lanes.bounds[chosen + 1],
        contents.contexts_in(lanes)[chosen],
        contents.index.track[lanes.first_row[chosen]],
        contents.events(lanes)[chosen],
        lanes.module[chosen],
    )
    return [
        Operation(
            id=id,
            kind="event" if module < 0 else "module",
            name=texts[name],
            rows=lanes.rows[start:end],
            context=context,
            track=track,
            event=event,
            module=module,
        )
        for id, (name, start, end, context, track, event, module) in zip(
            ids, zip(*(column.tolist() for column in columns), strict=True), strict=True
        )
    ]


def _ids(contents: Contents, lanes: Lanes, chosen: Ids) -> list[str]:
    columns = (contents.events(lanes)[chosen], lanes.module[chosen], lanes.first_row[chosen])
    return [
        f"e{first}" if event >= 0 else f"m{module}.{first}"
        for event, module, first in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _sections(
    contents: Contents, lanes: Lanes, facts: SiblingOperations, first: Ids, end: Ids
) -> list[Operation]:
    """Sections, each of several operations, from `first` to before `end`."""
    if not len(first):
        return []
    inside = _SectionContents.of(facts, first, end)
    start, stop = lanes.bounds[first], lanes.bounds[end]
    lane = lanes.lane[first]
    columns = (start, stop, lanes.context[lane], contents.index.track[lanes.rows[start]])
    kinds, names = inside.kinds(), inside.names(*contents.names(lanes))
    spreads = inside.spreads(contents, lanes)
    return [
        Operation(
            id=f"x{lanes.rows[start]}.{lanes.rows[stop - 1]}",
            kind=kind,
            name=name,
            rows=lanes.rows[start:stop],
            context=context,
            track=track,
            spread=spread,
        )
        for kind, name, spread, (start, stop, context, track) in zip(
            kinds, names, spreads, zip(*(column.tolist() for column in columns), strict=True), strict=True
        )
    ]


@dataclass(frozen=True, eq=False)
class _SectionContents:
    """What sections hold: their operations one after the other."""

    operation: Ids  # number of each, shape (operations,)
    section: Ids  # the section that it is in, ascending, shape (operations,)
    first: Ids  # where each section begins in these columns, shape (sections,)
    longer_ns: Times  # time of each on the side that takes longer for its whole section, (operations,)
    one_name: Mask  # whether a section's operations have one name, shape (sections,)
    one_block: Mask  # whether they are copies of one block, shape (sections,)
    period: Ids  # how many operations of a section are one copy of its pattern, shape (sections,)

    @classmethod
    def of(cls, facts: SiblingOperations, first: Ids, end: Ids) -> _SectionContents:
        section, operation = index_pairs(first, end)
        begin = np.cumsum(end - first) - (end - first)
        cpu, device, name, block = (
            column[operation] for column in (facts.cpu_ns, facts.device_ns, facts.name, facts.block)
        )
        on_device = np.add.reduceat(device, begin) >= np.add.reduceat(cpu, begin)
        one_name, one_block = (
            np.minimum.reduceat(column, begin) == np.maximum.reduceat(column, begin)
            for column in (name, block)
        )
        period = np.ones(len(first), np.int64)
        for one in np.flatnonzero(~one_name).tolist():
            period[one] = whole_period(facts.name[first[one] : end[one]])
        return cls(
            operation=operation,
            section=section,
            first=begin,
            longer_ns=np.where(on_device[section], device, cpu),
            one_name=one_name,
            one_block=one_block & (block[begin] >= 0),
            period=period,
        )

    @property
    def count(self) -> Ids:
        return np.diff(np.append(self.first, len(self.section)))

    def kinds(self) -> list[str]:
        repeats = self.one_block | (self.period > 1)
        return np.where(repeats, "repeat", np.where(self.one_name, "series", "section")).tolist()

    def names(self, texts: list[str], text: Ids) -> list[str]:
        """The name of each section.

        Args:
            text: which of them each operation of the lanes has.
        """
        own = text[self.operation]
        last = np.append(self.first[1:], len(own)) - 1
        names = summary_names(texts, own, self.section, self.longer_ns)
        copies = self.count // self.period
        for one in np.flatnonzero(self.period > 1).tolist():
            names[one] += f" ×{copies[one]}"
        for one in np.flatnonzero(self.one_block).tolist():
            names[one] = range_name(texts[own[self.first[one]]], texts[own[last[one]]])
        return names

    def spreads(self, contents: Contents, lanes: Lanes) -> list[Spread]:
        position = np.arange(len(self.section)) - self.first[self.section]
        copies = np.flatnonzero(position % self.period[self.section] == 0)
        runtime, of = np.add.reduceat(self.longer_ns, copies), self.section[copies]
        first = np.searchsorted(of, np.arange(len(self.first)))
        count = np.diff(np.append(first, len(of)))
        slowest = greatest_of_runs(runtime, first)
        columns = (
            count,
            np.minimum.reduceat(runtime, first),
            np.rint(np.add.reduceat(runtime, first) / count).astype(np.int64),
            runtime[slowest],
        )
        ids = _ids(contents, lanes, self.operation[copies[slowest]])
        return [Spread(*row) for row in zip(*(column.tolist() for column in columns), ids, strict=True)]
