"""The process groups of a job: shapes, bandwidth and skew, who arrives last, and pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.arrays import Floats, Ids
from stepscope.ranks.collectives import Matched, bus_bandwidth, wire_factor
from stepscope.ranks.job_table import JobTable

_MOST_PLACES = (
    200  # calls of a group whose places are looked up: the first steps show what is usual
)


class Shape(NamedTuple):
    """What alike process groups have in common; the fields are those of `GroupRow`."""

    kind: str
    axis: str
    members: int
    scope: str


class GroupRow(msgspec.Struct, frozen=True):
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


class Lateness(NamedTuple):
    """Arrivals at one kind of collective on process groups of one shape.

    Attributes:
        shape: the kind, and the process groups.
        late_ms: how much later per step each rank arrives than the median rank of its group, shape
            (ranks,); negative for ranks that wait longer; nan for those that take no part.
    """

    shape: Shape
    late_ms: Floats


def groups_by_shape(table: JobTable, matched: Matched) -> dict[Shape, list[int]]:
    """The keys of the process groups of each shape."""
    shapes: dict[Shape, list[int]] = {}
    for key, members in sorted(matched.members.items()):
        axis = _axis(table, matched, key, members)
        shape = Shape(matched.keys[key].kind, axis, len(members), _scope(table, members))
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
    gaps = set(np.diff(sorted(table.sketches[row].rank for row in members)).tolist())
    calls = matched.calls_of(key)[:_MOST_PLACES].tolist()
    if gaps == {1} and any(_place(table, matched, one).startswith("forward") for one in calls):
        return "tensor"
    reduces = kind.startswith(("allreduce", "reducescatter", "allgather"))
    return "data" if reduces and len(gaps) == 1 else ""


def _place(table: JobTable, matched: Matched, call: int) -> str:
    places = table.sketches[int(matched.rank[call])].calls.places
    place = int(matched.columns.place[call])
    return places[place] if 0 <= place < len(places) else ""


def _scope(table: JobTable, members: list[int]) -> str:
    nodes = {table.sketches[row].node for row in members}
    if "" in nodes:
        return ""
    return "within nodes" if len(nodes) == 1 else "between nodes"


def group_rows(
    table: JobTable, matched: Matched, groups: Mapping[Shape, list[int]]
) -> tuple[GroupRow, ...]:
    """The communication of a job on groups of each shape, what takes longest first."""
    rows = [_row(table, matched, shape, keys) for shape, keys in groups.items()]
    return tuple(sorted(rows, key=lambda one: -one.calls * (one.transfer_ms + one.skew_ms)))


def _row(table: JobTable, matched: Matched, shape: Shape, keys: list[int]) -> GroupRow:
    call = matched.first
    meetings = np.flatnonzero(np.isin(matched.key[call], keys))
    rate = bus_bandwidth(matched, meetings)
    known = rate[~np.isnan(rate)]
    bus = float(np.median(known)) if len(known) else None
    last, share, place = _last(table, matched, meetings)
    steps = len(np.unique(matched.columns.step[call[meetings]]))
    return GroupRow(
        kind=shape.kind, axis=shape.axis, groups=len(keys), members=shape.members,
        scope=shape.scope, calls=round(len(meetings) / len(keys) / steps, 2),
        bytes=int(np.median(matched.bytes[meetings])),
        transfer_ms=_median_ms(matched.transfer_ns[meetings]),
        algorithm_gbs=None if bus is None else
        round(bus / wire_factor(shape.kind, shape.members), 3),
        bus_gbs=None if bus is None else round(bus, 3),
        skew_ms=_median_ms(matched.skew_ns[meetings]),
        last_rank=last, last_share=share, last_place=place,
    )  # fmt: skip


def _last(table: JobTable, matched: Matched, meetings: Ids) -> tuple[int, float, str]:
    """The rank whose late arrivals cost most, how often it is last, and what it does before."""
    calls = matched.first[meetings]
    ranks = matched.rank[calls]
    worst = int(np.bincount(ranks, matched.skew_ns[meetings], len(table.sketches)).argmax())
    mine = calls[ranks == worst]
    took_part = np.isin(matched.key[calls], matched.key[matched.rank == worst]).sum()
    places = [_place(table, matched, call) for call in mine[:_MOST_PLACES].tolist()]
    common = max(sorted(set(places)), key=places.count)
    return table.sketches[worst].rank, round(float(len(mine) / max(took_part, 1)), 3), common


def _median_ms(values: np.ndarray) -> float:
    return round(float(np.median(values)) / 1e6, 6)


def lateness(
    table: JobTable, matched: Matched, groups: Mapping[Shape, list[int]]
) -> list[Lateness]:
    """The arrivals of all ranks, the kinds at which ranks wait longest first."""
    arrivals = []
    for shape, keys in groups.items():
        calls = np.flatnonzero(np.isin(matched.key, keys) & (matched.meeting >= 0))
        late = matched.late_ns(calls, len(table.sketches)) / 1e6 / len(table.steps)
        arrivals.append(Lateness(shape, late))
    return sorted(arrivals, key=lambda one: -float(np.nanmax(np.abs(one.late_ms))))


def pipeline_places(matched: Matched, ranks: int) -> dict[str, Ids]:
    """The pipeline stage of each rank, and the data-parallel rank (its pipeline); -1 for none.

    Ranks that send to each other form a pipeline. Its stages are counted from the end with the
    lower rank. Where passes are interleaved, the last stage sends to the first: then they are
    counted from the lowest rank. A job without sends, or whose pipelines are neither chains nor
    such rings, has no such parts.

    Returns:
        `pipeline stage` and `data-parallel rank`, each of shape (ranks,), or nothing.
    """
    pairs = [members for key, members in matched.members.items()
             if matched.keys[key].pair != (-1, -1)]  # fmt: skip
    next_to: dict[int, set[int]] = {}
    for one, other in pairs:
        next_to.setdefault(one, set()).add(other)
        next_to.setdefault(other, set()).add(one)
    stage, replica = np.full(ranks, -1), np.full(ranks, -1)
    pipelines = _pipelines(next_to)
    for number, pipeline in enumerate(pipelines):
        stage[pipeline], replica[pipeline] = range(len(pipeline)), number
    return {"pipeline stage": stage, "data-parallel rank": replica} if pipelines else {}


def _pipelines(next_to: dict[int, set[int]]) -> list[list[int]]:
    """The ranks of each pipeline, by stage: chains, and rings that ascend from their lowest rank.

    Args:
        next_to: the ranks that each rank exchanges with, by position.
    """
    pipelines: list[list[int]] = []
    known: set[int] = set()
    for row in sorted(next_to, key=lambda row: (len(next_to[row]) > 1, row)):
        if row in known:
            continue
        pipeline = _chain(row, next_to)
        known.update(pipeline)
        if len(next_to[row]) == 1 or _is_ring(pipeline, next_to):
            pipelines.append(pipeline)
    return pipelines


def _is_ring(pipeline: list[int], next_to: dict[int, set[int]]) -> bool:
    closed = next_to[pipeline[0]] == {pipeline[1], pipeline[-1]}
    return len(pipeline) > 2 and closed and pipeline == sorted(pipeline)


def _chain(first: int, next_to: dict[int, set[int]]) -> list[int]:
    """From a rank to the next, as long as there is one; from the first to its lower neighbor."""
    chain, before = [first], -1
    while following := sorted(row for row in next_to[chain[-1]] if row != before):
        before = chain[-1]
        if (len(following) > 1 and len(chain) > 1) or following[0] in chain:
            break
        chain.append(following[0])
    return chain
