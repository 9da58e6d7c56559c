"""What was recorded of one device's memory: allocations with their lifetimes, owners and users.

The profiler records each allocation and release with the operator around it. `stepscope run
--memory` adds which storages training keeps, and which tensors each operator reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Codes8, Counts, Floats, Ids, Mask
from stepscope.facts.annotate.attribution import Attribution
from stepscope.models.memory.lifetimes import Lifetimes, bytes_before
from stepscope.models.memory.owners import KINDS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class AllocationUses:
    """Which recorded allocation an operator reads or writes; every array has shape (m,)."""

    allocation: Ids
    event: Ids  # events.id of the operator
    saver: Ids  # of a backward operator the forward operator that kept the tensor for it, -1 for others
    backward: Mask  # whether the operator is part of backward
    row: Ids  # row of the table `tensor_uses`, -1 for the release of an allocation


@dataclass(frozen=True, eq=False)
class AllocationRecord:
    """The allocations of one device as they were recorded, which no change alters."""

    trace: Trace
    device: str  # `cpu` or `cuda:0`
    attribution: Attribution
    lifetimes: Lifetimes  # of the allocations, none with a known kind
    address: Ids  # of each allocation, -1 if unknown, shape (recorded,)
    # events.id of the innermost event around each allocation; -1 before the recording and outside of
    # every event, shape (recorded,)
    event: Ids
    storage: Ids  # storages.id of each allocation that training keeps, -1 for others
    released_by: Ids  # events.id of the innermost event around its release, -1 if unknown

    @classmethod
    def of(cls, trace: Trace, device: str, attribution: Attribution) -> AllocationRecord:
        """Each allocation in the history, then what was there before it."""
        table = trace["memory"]
        chosen = table.text("device").mask(device)
        table = table.take(np.flatnonzero(chosen & (table["bytes"] != 0)))
        begin, end = _paired(table)
        begin, end, old = begin[begin >= 0], end[begin >= 0], end[begin < 0]
        size, kept, freed = _before(trace, device, table, old)
        nowhere, release = np.full(len(size), -1, np.int64), np.concatenate([end, freed])
        storage = _kept_at_end(trace, device, table, begin, end)
        kept_before = np.append(trace["storages"]["address"], -1)[kept]
        return cls(
            trace=trace,
            device=device,
            attribution=attribution,
            lifetimes=_lifetimes(table, begin, release, size),
            address=np.concatenate([table["address"][begin], kept_before]).astype(np.int64),
            event=np.concatenate([table["event"][begin], nowhere]).astype(np.int64),
            storage=np.concatenate([storage, kept]),
            released_by=np.append(table["event"], -1)[release].astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.lifetimes)

    @cached_property
    def uses(self) -> AllocationUses:
        """Who uses each recorded allocation; empty if that was not recorded."""
        return _find_uses(self)

    @cached_property
    def root(self) -> Ids:
        """events.id of the outermost operator around each recorded allocation, -1 if unknown."""
        return np.append(self.attribution.root, -1)[self.event].astype(np.int64)

    @cached_property
    def stage(self) -> Codes8:
        """Position in STAGES of each recorded allocation, -1 if unknown."""
        return np.append(self.attribution.stage, -1)[self.event].astype(np.int8)

    @cached_property
    def module(self) -> Ids:
        """modules.id of each recorded allocation: of its operator, or of what training keeps."""
        paths = {path: row for row, path in enumerate(self.trace["modules"].text("path"))}
        owner = np.array(
            [paths.get(path, -1) for path in self.trace["storages"].text("path")] + [-1], np.int64
        )
        own = np.append(self.attribution.module, -1)[self.event]
        return np.where(self.storage >= 0, owner[self.storage], own).astype(np.int64)

    @cached_property
    def starts(self) -> Floats:
        """When each event begins, ns; the last value, inf, is of events.id -1."""
        return np.append(self.trace.events["start_ns"].astype(np.float64), np.inf)

    @cached_property
    def ends(self) -> Floats:
        """When each event ends, ns; the last value, -inf, is of events.id -1."""
        table = self.trace.events
        ends = (table["start_ns"] + table["duration_ns"]).astype(np.float64)
        return np.append(ends, -np.inf)

    @cached_property
    def last_read(self) -> Floats:
        """The end of the last forward operator that reads each allocation, or that makes it.

        The last value, -inf, is of allocation -1.
        """
        read = np.append(self.ends[self.root], -np.inf)
        forward = ~self.uses.backward
        np.maximum.at(read, self.uses.allocation[forward], self.ends[self.uses.event[forward]])
        return read


def _lifetimes(table: Table, begin: Ids, release: Ids, before: Counts) -> Lifetimes:
    times = np.append(table["time_ns"].astype(np.float64), np.inf)
    size = np.concatenate([table["bytes"][begin], before])
    return Lifetimes(
        bytes=size.astype(np.int64),
        start=np.concatenate([times[begin], np.full(len(before), -np.inf)]),
        end=times[release],
        kind=np.full(len(size), KINDS.index("unknown")),
        recorded=np.arange(len(size)),
    )


def _paired(table: Table) -> tuple[Ids, Ids]:
    """Rows of allocation and release, -1 where one of them was not recorded."""
    order = np.lexsort((np.arange(len(table)), table["address"]))
    takes, address = table["bytes"][order] > 0, table["address"][order]
    follows = np.append(address[1:] == address[:-1], False)[: len(order)]
    gives_next = np.append(~takes[1:], False)[: len(order)]
    closed = takes & follows & gives_next
    opened = np.append(False, closed[:-1])[: len(order)]
    begins, lone = np.flatnonzero(takes), np.flatnonzero(~takes & ~opened)
    after = np.append(order, -1)[np.where(closed[begins], begins + 1, len(order))]
    begin = np.concatenate([order[begins], np.full(len(lone), -1)])
    end = np.concatenate([after, order[lone]])
    return begin.astype(np.int64), end.astype(np.int64)


def _before(trace: Trace, device: str, table: Table, released: Ids) -> tuple[Counts, Ids, Ids]:
    """Bytes, storages.id and row of release of what was allocated before the recording; the last is
    what nothing is known of."""
    storages = _storages(trace, device, "before")
    address = trace["storages"]["address"][storages]
    by_address = {int(table["address"][row]): int(row) for row in released[::-1]}
    ends = np.array([by_address.get(int(place), -1) for place in address], np.int64)
    others = released[~np.isin(released, ends)]
    size = np.concatenate([trace["storages"]["bytes"][storages], -table["bytes"][others]])
    rest = max(bytes_before(table) - int(size.sum()), 0)
    storage = np.concatenate([storages, np.full(len(others) + 1, -1)]).astype(np.int64)
    release = np.concatenate([ends, others, [-1]]).astype(np.int64)
    return np.append(size, rest).astype(np.int64), storage, release


def _storages(trace: Trace, device: str, moment: str) -> Ids:
    table = trace["storages"]
    chosen = table.text("device").mask(device) & table.text("moment").mask(moment)
    return np.flatnonzero(chosen).astype(np.int64)


def _kept_at_end(trace: Trace, device: str, table: Table, begin: Ids, end: Ids) -> Ids:
    """storages.id of each allocation that is alive at the end and that training keeps."""
    rows = _storages(trace, device, "after")
    kept = dict(zip(trace["storages"]["address"][rows].tolist(), rows.tolist(), strict=True))
    storage = [kept.get(address, -1) for address in table["address"][begin].tolist()]
    return np.where(end < 0, np.array(storage, np.int64), -1)


def _find_uses(recording: AllocationRecord) -> AllocationUses:
    table, address = recording.trace["tensor_uses"], recording.address
    rows = np.flatnonzero(table["event"] >= 0)
    times = table["time_ns"][rows]
    allocation = _alive_then(address, recording.lifetimes, table["address"][rows], times)
    rows, allocation = rows[allocation >= 0], allocation[allocation >= 0]
    event = table["event"][rows].astype(np.int64)
    # What releases a tensor held it until then, also where no operator of it is recorded.
    gone = np.flatnonzero(recording.released_by >= 0)
    event = np.concatenate([event, recording.released_by[gone]])
    allocation = np.concatenate([allocation, gone])
    root = np.append(recording.attribution.root, -1)[event]
    saver = np.append(recording.trace.events["forward_event"], -1)[root]
    backward = np.append(recording.attribution.backward, False)[event]
    row = np.concatenate([rows, np.full(len(gone), -1)]).astype(np.int64)
    return AllocationUses(allocation, event, np.where(backward, saver, -1).astype(np.int64), backward, row)


def _alive_then(addresses: Ids, life: Lifetimes, wanted: Ids, time: Ids) -> Ids:
    """The allocation that lies at an address at a time, -1 if none is known."""
    _, code = np.unique(np.concatenate([addresses, wanted]), return_inverse=True)
    moments = np.concatenate([life.start, time.astype(np.float64)])
    _, rank = np.unique(moments, return_inverse=True)
    key = code * (rank.max(initial=0) + 1) + rank
    own, asked = key[: len(addresses)], key[len(addresses) :]
    order = np.argsort(own, kind="stable")
    place = np.searchsorted(own[order], asked, side="right") - 1
    if not len(order):
        return np.full(len(asked), -1, np.int64)
    nearest = order[np.maximum(place, 0)]
    hit = (place >= 0) & (addresses[nearest] == wanted) & (life.end[nearest] >= time)
    return np.where(hit, nearest, -1).astype(np.int64)
