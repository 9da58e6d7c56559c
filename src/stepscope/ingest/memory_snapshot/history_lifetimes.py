"""Allocations with their lifetimes, from an allocator's history and what is alive at its end."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Array, Rows
from stepscope.trace.table import Table

_NAMES = ("device", "address", "bytes", "stream", "stack", "start_ns", "request_ns", "end_ns")


def find_allocations(events: Table, segments: Table, blocks: Table) -> dict[str, Any]:
    """Columns of the table `allocations`.

    An allocation whose beginning or end lies outside the history has -1 there.

    Args:
        events: the table `memory_events`, in order for each device.
        segments: the table `segments`.
        blocks: the table `blocks`.
    """
    order = np.lexsort((np.arange(len(events)), events["address"], events["device"]))
    action = events.text("action")
    begins = order[action.mask("alloc")[order]]
    parts = [
        _recorded(events, order),
        _freed_only(events, order),
        _alive_before(events, begins, segments, blocks),
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in _NAMES}


def _recorded(events: Table, order: Rows) -> dict[str, Array]:
    """Allocations whose beginning is in the history."""
    starts = np.flatnonzero(events.text("action").mask("alloc")[order])
    limit = np.append(starts[1:], len(order))
    rows = order[starts]
    requested = _first(events, order, starts, limit, "free_requested")
    completed = _first(events, order, starts, limit, "free_completed", "free")
    return {
        **{name: events[name][rows] for name in ("device", "address", "bytes", "stream", "stack")},
        "start_ns": events["time_ns"][rows],
        "request_ns": _time_at(events, requested),
        "end_ns": _time_at(events, completed),
    }


def _freed_only(events: Table, order: Rows) -> dict[str, Array]:
    """Allocations of which the history holds only the end: the first event of their address."""
    action = events.text("action")
    ends = np.flatnonzero(action.mask("free_completed", "free")[order])
    last = np.flatnonzero(action.mask("alloc", "free_completed", "free")[order])
    before = np.searchsorted(last, ends) - 1
    earlier = order[last[np.maximum(before, 0)]]
    rows = order[ends]
    first = (before < 0) | ~_same_place(events, rows, earlier)
    rows = rows[first]
    nothing = np.full(len(rows), -1, np.int64)
    return {
        **{name: events[name][rows] for name in ("device", "address", "bytes", "stream")},
        "stack": nothing.astype(np.int32),
        "start_ns": nothing,
        "request_ns": nothing,
        "end_ns": events["time_ns"][rows],
    }


def _alive_before(events: Table, begins: Rows, segments: Table, blocks: Table) -> dict[str, Array]:
    """Blocks that are in use at the end and whose beginning is not in the history."""
    used = np.flatnonzero(blocks.text("state").where(lambda state: state.startswith("active")))
    device = segments["device"][blocks["segment"][used]]
    alive = _alive_at_end(events, begins)
    known = _places(events["device"][alive], events["address"][alive])
    places = _places(device, blocks["address"][used])
    old = np.array([place not in known for place in places], np.bool_)
    used, device = used[old], device[old]
    nothing = np.full(len(used), -1, np.int64)
    return {
        "device": device,
        "address": blocks["address"][used],
        "bytes": blocks["bytes"][used],
        "stream": segments["stream"][blocks["segment"][used]],
        "stack": blocks["stack"][used],
        "start_ns": nothing,
        "request_ns": nothing,
        "end_ns": nothing,
    }


def _alive_at_end(events: Table, begins: Rows) -> Rows:
    """The allocations of the history that are the last event of their address."""
    relevant = np.flatnonzero(events.text("action").mask("alloc", "free_completed", "free"))
    order = relevant[
        np.lexsort((relevant, events["address"][relevant], events["device"][relevant]))
    ]
    following = np.roll(order, -1)
    last = ~_same_place(events, order, following)
    if len(last):
        last[-1] = True
    return order[last & np.isin(order, begins)]


def _first(events: Table, order: Rows, starts: Rows, limit: Rows, *actions: str) -> Rows:
    """The first event of some actions at the same address before the next allocation, or -1."""
    found = np.flatnonzero(events.text("action").mask(*actions)[order])
    place = np.searchsorted(found, starts)
    candidate = np.append(found, len(order))[place]
    rows = np.append(order, -1)[candidate]
    hit = (candidate < limit) & _same_place(events, order[starts], rows)
    return np.where(hit, rows, -1)


def _places(device: Array, address: Array) -> dict[tuple[int, int], None]:
    """Pairs of device and address, in order; no two blocks in use share one."""
    return dict.fromkeys(zip(device.tolist(), address.tolist(), strict=True))


def _same_place(events: Table, a: Rows, b: Rows) -> Array:
    same: Array = (events["device"][a] == events["device"][b]) & (
        events["address"][a] == events["address"][b]
    )
    return same


def _time_at(events: Table, rows: Rows) -> Array:
    return np.where(rows >= 0, events["time_ns"][rows], -1)
