"""The operations that levels list: those of their lanes, alone or put together into sections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids, Mask, Times
from stepscope.timeline.event_index import ranges
from stepscope.timeline.lanes import Contents, Lanes
from stepscope.timeline.operation import Operation, Spread
from stepscope.timeline.operation_costs import Costs
from stepscope.timeline.operation_labels import range_name, summary_names
from stepscope.timeline.sections import SiblingOperations, find_sections, whole_period


def group(
    contents: Contents, lanes: Lanes, costs: Costs, parent_ns: Times, tiny: float
) -> tuple[list[Operation], Ids]:
    """The operations and sections of lanes, in order, and the lane of each.

    Args:
        contents: of the trace.
        lanes: inside the operations that are opened; none is empty.
        costs: of the lanes' operations.
        parent_ns: runtime of the operation that is opened, for each lane.
        tiny: see `find_sections`.
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
    operations = [next(singles if one else sections) for one in alone.tolist()]
    return operations, lanes.lane[first]


def _singles(contents: Contents, lanes: Lanes, chosen: Ids) -> list[Operation]:
    """Single operations."""
    texts, text = contents.names(lanes)
    ids = _ids(contents, lanes, chosen)
    rows = lanes.first_row[chosen]
    columns = (
        text[chosen],
        lanes.bounds[chosen],
        lanes.bounds[chosen + 1],
        contents.contexts_in(lanes)[chosen],
        contents.index.track[rows],
        contents.events(lanes)[chosen],
        lanes.module[chosen],
        contents.recompute[rows] == 1,
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
            recompute=again,
        )
        for id, (name, start, end, context, track, event, module, again) in zip(
            ids, zip(*(column.tolist() for column in columns), strict=True), strict=True
        )
    ]


def _ids(contents: Contents, lanes: Lanes, chosen: Ids) -> list[str]:
    """The ids of single operations."""
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
    inside = _Inside.of(facts, first, end)
    start, stop = lanes.bounds[first], lanes.bounds[end]
    of_row, row = ranges(start, stop)
    again = np.bincount(of_row, contents.recompute[lanes.rows[row]] == 0, len(first)) == 0
    lane = lanes.lane[first]
    columns = (start, stop, lanes.context[lane], contents.index.track[lanes.rows[start]], again)
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
            recompute=again,
            spread=spread,
        )
        for kind, name, spread, (start, stop, context, track, again) in zip(
            kinds,
            names,
            spreads,
            zip(*(column.tolist() for column in columns), strict=True),
            strict=True,
        )
    ]


@dataclass(frozen=True, eq=False)
class _Inside:
    """What sections hold: their operations one after the other.

    Attributes:
        operation: number of each, shape (operations,).
        section: the section that it is in, ascending, shape (operations,).
        first: where each section begins in these columns, shape (sections,).
        longer_ns: time of each on the side that takes longer for its whole section, (operations,).
        one_name: whether a section's operations have one name, shape (sections,).
        one_block: whether they are copies of one block, shape (sections,).
        period: how many operations of a section are one copy of its pattern, shape (sections,).
    """

    operation: Ids
    section: Ids
    first: Ids
    longer_ns: Times
    one_name: Mask
    one_block: Mask
    period: Ids

    @classmethod
    def of(cls, facts: SiblingOperations, first: Ids, end: Ids) -> _Inside:
        """The inside of the sections from each `first` to before `end`."""
        section, operation = ranges(first, end)
        begin = np.cumsum(end - first) - (end - first)
        cpu, device, name, block = (
            column[operation] for column in (facts.cpu_ns, facts.device_ns, facts.name, facts.block)
        )
        on_device = np.add.reduceat(device, begin) >= np.add.reduceat(cpu, begin)
        one_name, one_block = (_all_equal(column, begin) for column in (name, block))
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
        """Operations in each section."""
        return np.diff(np.append(self.first, len(self.section)))

    def kinds(self) -> list[str]:
        """The kind of each section."""
        repeats = self.one_block | (self.period > 1)
        kinds: list[str] = np.where(
            repeats, "repeat", np.where(self.one_name, "series", "section")
        ).tolist()
        return kinds

    def names(self, texts: list[str], text: Ids) -> list[str]:
        """The name of each section.

        Args:
            texts: distinct names of operations.
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
        """How the copies in each section differ."""
        position = np.arange(len(self.section)) - self.first[self.section]
        copies = np.flatnonzero(position % self.period[self.section] == 0)
        runtime, of = np.add.reduceat(self.longer_ns, copies), self.section[copies]
        first = np.searchsorted(of, np.arange(len(self.first)))
        count = np.diff(np.append(first, len(of)))
        most = np.maximum.reduceat(runtime, first)
        longest = np.flatnonzero(runtime == most[of])
        slowest = longest[np.searchsorted(of[longest], np.arange(len(first)))]
        columns = (
            count,
            np.minimum.reduceat(runtime, first),
            np.rint(np.add.reduceat(runtime, first) / count).astype(np.int64),
            most,
        )
        ids = _ids(contents, lanes, self.operation[copies[slowest]])
        rows = zip(*(column.tolist() for column in columns), ids, strict=True)
        return [Spread(*row) for row in rows]


def _all_equal(values: Ids, first: Ids) -> Mask:
    """Whether all values from each `first` to before the next are equal."""
    equal: Mask = np.minimum.reduceat(values, first) == np.maximum.reduceat(values, first)
    return equal
