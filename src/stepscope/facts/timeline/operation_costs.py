"""Costs of operations: CPU interval and time, device intervals by stream, raw events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.facts.timeline.event_index import Index
from stepscope.trace.intervals import grouped_union
from stepscope.trace.row_order import inverse
from stepscope.trace.sets import numbered


@dataclass(frozen=True)
class DeviceParts:
    """The device side of operations: a row for each operation and stream that it has work on."""

    operation: Ids  # index of the operation, shape (parts,)
    track: Ids  # of the stream, shape (parts,)
    start_ns: Times  # start of the first piece of work, shape (parts,)
    end_ns: Times  # end of the last, shape (parts,)
    busy_ns: Times  # union of them, shape (parts,)
    event: Ids  # the piece itself where there is only one, else -1, shape (parts,)


@dataclass(frozen=True)
class Costs:
    """What each of some operations costs, shapes (operations,), times in ns."""

    start_ns: Times  # CPU start, -1 without a CPU side
    end_ns: Times  # CPU end, -1 without a CPU side
    cpu_ns: Times  # CPU time, as a union
    work_ns: Times  # CPU time of operators and calls alone, without frames and annotations
    # CPU time of its outermost events in which nothing inside them runs; of a stage, in which none of its
    # events runs
    self_ns: Times
    recompute_ns: Times  # CPU time of forward work repeated in backward
    device_start_ns: Times  # start of the first device work, -1 without any
    device_end_ns: Times  # end of the last, -1 without any
    device_ns: Times  # device busy time, as a union over streams
    events: Ids  # raw events, those on devices included
    parts: DeviceParts  # the device side by stream

    @property
    def runtime_ns(self) -> Times:
        """The longer side of each operation."""
        return np.maximum(self.cpu_ns, self.device_ns)

    @property
    def bound_by_device(self) -> Mask:
        """Whether the device takes longer than the CPU.

        Source: HOTLINE section 6.3, "limited by GPU or CPU".
        """
        return self.device_ns >= np.maximum(self.cpu_ns, 1)

    def take(self, operations: Ids) -> Costs:
        """The costs of chosen operations, in the order of `operations`, none twice."""
        place = inverse(operations, len(self.cpu_ns))
        kept = np.flatnonzero(place[self.parts.operation] >= 0)
        parts = _each(self.parts, lambda column: column[kept])
        parts["operation"] = place[parts["operation"]]
        return Costs(**_each(self, lambda column: column[operations]), parts=DeviceParts(**parts))

    def split(self, bounds: Ids) -> list[Costs]:
        """The costs of the operations from each bound to before the next one."""
        own, parts = (_each(one, lambda column: column) for one in (self, self.parts))
        cuts = np.searchsorted(self.parts.operation, bounds).tolist()
        found = []
        for (first, end), (start, until) in zip(pairwise(bounds.tolist()), pairwise(cuts), strict=True):
            inner = {name: column[start:until] for name, column in parts.items()}
            inner["operation"] = inner["operation"] - first
            columns = {name: column[first:end] for name, column in own.items()}
            found.append(Costs(**columns, parts=DeviceParts(**inner)))
        return found

    @classmethod
    def joined(cls, several: Sequence[Costs]) -> Costs:
        """The costs of operations one after the other."""
        first = np.cumsum([0, *(len(one.cpu_ns) for one in several)]).tolist()
        own = [_each(one, lambda column: column) for one in several]
        parts = [_each(one.parts, lambda column: column) for one in several]
        for part, offset in zip(parts, first, strict=False):
            part["operation"] = part["operation"] + offset
        columns, inner = (
            {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
            for tables in (own, parts)
        )
        return cls(**columns, parts=DeviceParts(**inner))


def _each(table: Costs | DeviceParts, change: Callable[[Ids], Ids]) -> dict[str, Ids]:
    """Every column of numbers, changed, by its name."""
    return {name: change(column) for name, column in vars(table).items() if name != "parts"}


def measure(
    index: Index, rows: Ids, bounds: Ids, span: tuple[Ids | int, Ids | int], stage: Ids | None = None
) -> Costs:
    """The costs of operations, each of some events with all that is inside them.

    Args:
        bounds: operation i holds `rows[bounds[i]:bounds[i + 1]]`, at least one; (operations + 1,).
        span: start and end on the CPU of each operation's parent, or of the one that all have, to
            which CPU times are clipped, ns.
        stage: of each operation, where operations are stages: compiled work that is of another,
            though launched in this one, is left to that.
    """
    count = len(bounds) - 1
    group = np.repeat(np.arange(count), np.diff(bounds))
    host = ~index.on_device[rows]
    host_group, members = group[host], rows[host]
    span_of = [np.broadcast_to(side, count)[host_group] for side in span]
    start = np.clip(index.start[members], *span_of)
    end = np.clip(index.end[members], *span_of)
    first, last = index.inside(members)
    row, work = index.device_work(rows)
    if stage is not None:
        here = (index.events["scope"][work] < 0) | (index.events["stage"][work] == stage[group[row]])
        row, work = row[here], work[here]
    parts = _parts(index, group[row], count, work)
    pieces = np.bincount(group[row], minlength=count)
    return Costs(
        start_ns=_extreme(np.minimum, host_group, start, count),
        end_ns=_extreme(np.maximum, host_group, end, count),
        cpu_ns=grouped_union(host_group, start, end, count),
        work_ns=_sum(host_group, index.work_before[last] - index.work_before[first], count),
        self_ns=_sum(host_group, index.events["self_ns"][members], count),
        recompute_ns=_sum(host_group, index.again_before[last] - index.again_before[first], count),
        device_start_ns=_extreme(np.minimum, parts.operation, parts.start_ns, count),
        device_end_ns=_extreme(np.maximum, parts.operation, parts.end_ns, count),
        device_ns=grouped_union(group[row], index.start[work], index.end[work], count),
        events=_sum(host_group, last - first, count) + pieces,
        parts=parts,
    )


def _parts(index: Index, group: Ids, groups: int, work: Ids) -> DeviceParts:
    tracks = len(index.trace["tracks"])
    keys, part = numbered(group * tracks + index.track[work], groups * tracks)
    start, end, count = index.start[work], index.end[work], len(keys)
    pieces = np.bincount(part, minlength=count)
    return DeviceParts(
        operation=keys // tracks,
        track=keys % tracks,
        start_ns=_extreme(np.minimum, part, start, count),
        end_ns=_extreme(np.maximum, part, end, count),
        busy_ns=grouped_union(part, start, end, count),
        event=np.where(pieces == 1, _extreme(np.maximum, part, work, count), -1),
    )


def _extreme(ufunc: np.ufunc, group: Ids, values: Times, count: int) -> Times:
    """The least or greatest value of each group, -1 for a group without any."""
    lowest = ufunc is np.minimum
    result = np.full(count, 2**62 if lowest else -1, np.int64)
    ufunc.at(result, group, values)
    return np.where(result == 2**62, -1, result) if lowest else result


def _sum(group: Ids, values: Times, count: int) -> Times:
    return np.bincount(group, values, count).astype(np.int64)
