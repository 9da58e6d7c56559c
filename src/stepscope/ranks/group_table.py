"""The collectives of a job by kind and parallel axis: bandwidth, skew, and who arrives last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.arrays import Ids
from stepscope.ranks.collectives import Matched, bus_bandwidth, wire_factor
from stepscope.ranks.job_table import JobTable


class Shape(NamedTuple):
    """What alike process groups have in common; the fields are those of `GroupRow`."""

    kind: str
    axis: str
    members: int
    scope: str


@dataclass(frozen=True)
class GroupRow:
    """Communication of one kind on process groups of one shape; times in ms.

    Attributes:
        kind: such as `allreduce`.
        axis: `data`, `tensor`, `pipeline`, `expert` or `world`; empty where membership does not
            reveal it.
        groups, members: how many process groups, and ranks in each.
        scope: `within nodes`, `between nodes`, or empty where machines are unknown.
        calls: per step and group.
        bytes: of the median call, -1 if unknown.
        transfer_ms: per call once the last rank has arrived, median.
        algorithm_gbs, bus_gbs: bandwidth as NCCL's tests define it, medians; None if unknown.
        skew_ms: from the first to the last arrival, median.
        last_rank: the rank that most often arrives last, and costs the others most.
        last_share: the share of its calls in which it is last.
        last_place: what it does before: stage, module and kernel.
    """

    kind: str
    axis: str
    groups: int
    members: int
    scope: str
    calls: float
    bytes: int
    transfer_ms: float
    algorithm_gbs: float | None
    bus_gbs: float | None
    skew_ms: float
    last_rank: int
    last_share: float
    last_place: str


def group_rows(
    table: JobTable, matched: Matched, groups: Mapping[Shape, list[int]]
) -> tuple[GroupRow, ...]:
    """The communication of a job on groups of each shape, what takes longest first."""
    rows = [_row(table, matched, shape, keys) for shape, keys in groups.items()]
    return tuple(sorted(rows, key=lambda one: -one.calls * (one.transfer_ms + one.skew_ms)))


def groups_by_shape(table: JobTable, matched: Matched) -> dict[Shape, list[int]]:
    """The keys of the process groups of each shape."""
    shapes: dict[Shape, list[int]] = {}
    for key, members in sorted(matched.members.items()):
        which = _axis(table, matched, key, members)
        shape = Shape(matched.keys[key].kind, which, len(members), _scope(table, members))
        shapes.setdefault(shape, []).append(key)
    return shapes


def _axis(table: JobTable, matched: Matched, key: int, members: list[int]) -> str:
    """The parallel axis of a process group, as far as kind and membership reveal it.

    Sends and receives are between pipeline stages, all-to-all exchanges experts. Ranks next to each
    other that communicate in the forward pass split tensors; ranks at equal distances that reduce
    or gather hold replicas or shards of the same parameters.
    """
    kind = matched.keys[key].kind
    if kind == "sendrecv" and matched.keys[key].pair != (-1, -1):
        return "pipeline"
    if kind.startswith("alltoall"):
        return "expert"
    if len(members) == len(table.sketches):
        return "world"
    ranks = sorted(table.sketches[row].rank for row in members)
    gaps = set(np.diff(ranks).tolist())
    if gaps == {1} and _in_forward(table, matched, key):
        return "tensor"
    reduces = kind.startswith(("allreduce", "reducescatter", "allgather"))
    return "data" if reduces and len(gaps) == 1 else ""


def _in_forward(table: JobTable, matched: Matched, key: int) -> bool:
    calls = matched.calls_of(key)[:200].tolist()
    return any(_place(table, matched, call).startswith("forward") for call in calls)


def _place(table: JobTable, matched: Matched, call: int) -> str:
    places = table.sketches[int(matched.rank[call])].calls.places
    place = int(matched.columns.place[call])
    return places[place] if 0 <= place < len(places) else ""


def _scope(table: JobTable, members: list[int]) -> str:
    nodes = {table.sketches[row].node for row in members}
    if "" in nodes:
        return ""
    return "within nodes" if len(nodes) == 1 else "between nodes"


def _row(table: JobTable, matched: Matched, shape: Shape, keys: list[int]) -> GroupRow:
    kind, which, members, scope = shape
    call = matched.first
    meetings = np.flatnonzero(np.isin(matched.key[call], keys))
    bus = _known_median(bus_bandwidth(matched, meetings))
    last, share, place = _last(table, matched, meetings)
    return GroupRow(
        kind, which, len(keys), members, scope,
        round(len(meetings) / len(keys) / len(np.unique(matched.columns.step[call[meetings]])), 2),
        int(np.median(matched.bytes[meetings])), _ms(matched.transfer_ns[meetings]),
        None if bus is None else round(bus / wire_factor(kind, members), 3),
        None if bus is None else round(bus, 3), _ms(matched.skew_ns[meetings]), last, share, place,
    )  # fmt: skip


def _known_median(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _last(table: JobTable, matched: Matched, meetings: Ids) -> tuple[int, float, str]:
    """The rank whose late arrivals cost most, how often it is last, and what it does before."""
    calls = matched.first[meetings]
    ranks = matched.rank[calls]
    late = np.bincount(ranks, matched.skew_ns[meetings], len(table.sketches))
    worst = int(late.argmax())
    mine = calls[ranks == worst]
    key = matched.key[matched.first[meetings]]
    took_part = np.isin(key, matched.key[matched.rank == worst]).sum()
    places = [_place(table, matched, call) for call in mine[:200].tolist()]
    common = max(sorted(set(places)), key=places.count)
    return table.sketches[worst].rank, round(float(len(mine) / max(took_part, 1)), 3), common


def _ms(values: np.ndarray) -> float:
    return round(float(np.median(values)) / 1e6, 6)
