"""The process groups of a job: bandwidth and skew, who arrives last, slow links, and pipelines."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.models.ranks.collectives import Matched, bus_bandwidth, wire_factor
from stepscope.models.ranks.sketch import JobTable
from stepscope.models.ranks.slow_groups import Excess, SlowGroup, SlowSteps, is_no_chance, slow_steps
from stepscope.models.ranks.stragglers import Straggler
from stepscope.trace.row_order import rows_by_key

_MOST_PLACES = 200  # calls of a group whose places are looked up: the first steps show what is usual
# Thresholds of links; [jobs]: see `slow_groups`.
_LEAST_GROUPS = 3  # with fewer, the median is no reference
_LEAST_RATIO = 1.3  # of the usual transfer: links vary more than work; docs/howto/slow_rank.md
_FASTER = 90  # percentile of a group's calls: small ones take time that no link explains; [jobs]
_THROUGH = 1.2  # of the slow link's bandwidth: a group that is no faster passes through it; [jobs]
_LEAST_THROUGH = 0.01  # of the step: a transfer of less may be latency alone; [jobs]
_MOST_NAMED = 2  # groups in a sentence


class Shape(NamedTuple):
    """What alike process groups have in common; the fields are those of `GroupRow`."""

    kind: str
    axis: str
    members: int
    scope: str


class GroupRow(msgspec.Struct, frozen=True):
    """Communication of one kind on process groups of one shape; times in ms."""

    kind: str  # such as `allreduce`
    axis: str  # `data`, `tensor`, `pipeline`, `expert` or `world`; empty where membership does not reveal it
    groups: int  # how many process groups
    members: int  # ranks in each
    scope: str  # `within nodes`, `between nodes`, or empty where machines are unknown
    calls: float  # per step and group
    bytes: int  # of the median call, -1 if unknown
    transfer_ms: float  # per call once the last rank has arrived, median
    algorithm_gbs: float | None  # bandwidth as NCCL's tests define it, medians; None if unknown
    bus_gbs: float | None  # bandwidth as NCCL's tests define it, medians; None if unknown
    skew_ms: float  # from the first to the last arrival, median
    last_rank: int  # the rank that most often arrives last, and costs the others most
    last_share: float  # the share of its calls in which it is last
    last_place: str  # what it does before: stage, module and kernel


class Lateness(NamedTuple):
    """Arrivals at one kind of collective on process groups of one shape."""

    shape: Shape
    # how much later per step each rank arrives than the median rank of its group, shape (ranks,);
    # negative for ranks that wait longer; nan for those that take no part
    late_ms: Floats


def groups_by_shape(table: JobTable, matched: Matched) -> dict[Shape, list[int]]:
    """The keys of the process groups of each shape."""
    shapes: dict[Shape, list[int]] = {}
    for key, members in sorted(matched.members.items()):
        axis = _axis(table, matched, key, members)
        nodes = {table.sketches[row].node for row in members}
        scope = "" if "" in nodes else "within nodes" if len(nodes) == 1 else "between nodes"
        shape = Shape(matched.keys[key].kind, axis, max(len(members), matched.keys[key].size), scope)
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
    calls = matched.calls_by_key[key][:_MOST_PLACES].tolist()
    if gaps == {1} and any(_place(table, matched, one).startswith("forward") for one in calls):
        return "tensor"
    reduces = kind.startswith(("allreduce", "reducescatter", "allgather"))
    return "data" if reduces and len(gaps) == 1 else ""


def _place(table: JobTable, matched: Matched, call: int) -> str:
    places = table.sketches[int(matched.rank[call])].calls.places
    place = int(matched.columns.place[call])
    return places[place] if 0 <= place < len(places) else ""


def group_rows(table: JobTable, matched: Matched, groups: Mapping[Shape, list[int]]) -> tuple[GroupRow, ...]:
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
        **shape._asdict(),
        groups=len(keys),
        calls=round(len(meetings) / len(keys) / steps, 2),
        bytes=int(np.median(matched.bytes[meetings])),
        transfer_ms=_median_ms(matched.transfer_ns[meetings]),
        algorithm_gbs=None if bus is None else round(bus / wire_factor(shape.kind, shape.members), 3),
        bus_gbs=None if bus is None else round(bus, 3),
        skew_ms=_median_ms(matched.skew_ns[meetings]),
        last_rank=last,
        last_share=share,
        last_place=place,
    )


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


def lateness(table: JobTable, matched: Matched, groups: Mapping[Shape, list[int]]) -> list[Lateness]:
    """The arrivals of all ranks, the kinds at which ranks wait longest first."""
    arrivals = []
    for shape, keys in groups.items():
        calls = np.flatnonzero(np.isin(matched.key, keys) & (matched.meeting >= 0))
        late = matched.late_ns(calls, len(table.sketches)) / 1e6 / len(table.steps)
        arrivals.append(Lateness(shape, late))
    return sorted(arrivals, key=lambda arrival: -float(np.nanmax(np.abs(arrival.late_ms))))


class _Transfers(NamedTuple):
    """What one process group transfers in each step by one kind of collective."""

    kind: str
    group: str  # name of the process group, or the pair of a `send`
    ranks: tuple[int, ...]  # positions of its members among the sketches
    nodes: tuple[str, ...]
    ms: Floats  # per step, shape (steps,)
    rate: float  # bus bandwidth of the median call, GB/s, nan if unknown
    fastest: float
    likeness: str  # groups of equal likeness transfer as much among as many ranks and machines


class _SlowLink(NamedTuple):
    """A group that is slow in some steps, and what others like it take, ms, and reach, GB/s."""

    group: _Transfers
    steps: SlowSteps
    usual: Floats
    usual_rate: float


def find_slow_links(table: JobTable, matched: Matched) -> list[Straggler]:
    """Groups whose transfers, without waiting for the last rank, take longer than the median."""
    groups = sorted(_transfers(table, matched), key=lambda one: one.likeness)
    links: dict[tuple[tuple[str, ...], str], list[_SlowLink]] = {}
    for _, alike in groupby(groups, key=lambda one: one.likeness):
        for link in _slow_of(list(alike), table.step_ms):
            links.setdefault((link.group.nodes, link.group.kind), []).append(link)
    return [_finding(table, slow, groups) for slow in links.values()]


def _slow_of(members: Sequence[_Transfers], step_ms: float) -> list[_SlowLink]:
    if len(members) < _LEAST_GROUPS:
        return []
    values = np.array([one.ms for one in members])
    work = Excess.of(values, step_ms)
    usual = values[0] - work.ms[0]
    slow = work.slow & (values > _LEAST_RATIO * usual)
    healthy = work.peers.mean(axis=1) > 0.5
    rates = np.array([one.rate for one in members])
    usual_rate = float(np.median(rates[healthy] if healthy.any() else rates))
    return [
        _SlowLink(one, steps, usual, usual_rate)
        for row, one in enumerate(members)
        if (steps := slow_steps(slow[row])) is not None and is_no_chance(slow, [row], steps, len(slow))
    ]


def _transfers(table: JobTable, matched: Matched) -> list[_Transfers]:
    """The transfers of each process group by kind; of groups that are whole in the sketches."""
    if not matched.count:
        return []
    call = matched.first
    step, key = matched.columns.step[call], matched.key[call]
    transfer = matched.transfer_ns / 1e6
    rate = bus_bandwidth(matched, np.arange(matched.count))
    groups = []
    for number, mine in rows_by_key(key).items():
        kind, ranks = matched.keys[number].kind, tuple(matched.members[number])
        nodes = tuple(sorted({table.sketches[row].node for row in ranks}))
        calls = round(len(mine) / max(len(np.unique(step[mine])), 1))
        alike = (kind, len(ranks), len(nodes), calls, int(np.median(matched.bytes[mine])))
        groups.append(
            _Transfers(
                kind,
                matched.keys[number].name,
                ranks,
                nodes,
                np.bincount(step[mine], transfer[mine], len(table.steps)).astype(np.float64),
                float(np.median(rate[mine])),
                float(np.percentile(rate[mine], _FASTER)),
                str(alike),
            )
        )
    return groups


def _finding(table: JobTable, slow: list[_SlowLink], groups: Sequence[_Transfers]) -> Straggler:
    when = np.any([one.steps.when for one in slow], axis=0)
    rows = sorted({row for one in slow for row in one.group.ranks})
    together = SlowGroup(rows, SlowSteps(when, all(one.steps.recurs for one in slow)))
    taken = np.median([one.group.ms[when] for one in slow])
    usual = float(np.median([one.usual[when] for one in slow]))
    excess = float(taken - usual)
    nodes = [node for node in slow[0].group.nodes if node]
    wider = _through(slow, groups, table.step_ms)
    return Straggler(
        ranks=tuple(sorted(table.sketches[row].rank for row in rows)),
        node=nodes[0] if len(nodes) == 1 else "",
        stage="communication",
        steps=together.span(table.steps),
        excess_ms=excess,
        excess=excess / usual if usual else float("inf"),
        cause=_cause(slow, nodes, wider),
        groups=tuple(sorted({one.group.group for one in slow})),
        through=wider,
        stages={"communication": excess},
        count=together.count,
        period=together.steps.period,
    )


def _through(slow: list[_SlowLink], groups: Sequence[_Transfers], step_ms: float) -> tuple[str, ...]:
    """Larger groups that are no faster than the slow link: a ring is as fast as its slowest link.

    Those that hardly take time are left out: latency may be all of it.
    """
    rate = _THROUGH * float(np.median([one.group.rate for one in slow]))
    wider = {
        f"{one.kind} of {one.group}"
        for one in groups
        if one.fastest <= rate
        and float(np.median(one.ms)) >= _LEAST_THROUGH * step_ms
        and any(set(one.ranks) > set(link.group.ranks) for link in slow)
    }
    return tuple(sorted(wider))


def _cause(slow: list[_SlowLink], nodes: list[str], wider: Sequence[str]) -> str:
    group, rate = slow[0].group, np.median([one.group.rate for one in slow])
    where = f" between {' and '.join(nodes)}" if len(nodes) > 1 else ""
    if len(slow) == 1 and "->" in group.group:
        where += " from rank {} to rank {}".format(*group.group.split("->"))
    usual = f"other groups at {slow[0].usual_rate:.3g}"
    speed = "" if np.isnan(rate) else f" ({group.kind} at {rate:.3g} GB/s, {usual})"
    through = f", which slows {' and '.join(wider[:_MOST_NAMED])}, too" if wider else ""
    return f"slower link{where}{speed}{through}"


def pipeline_places(matched: Matched, ranks: int) -> dict[str, Ids]:
    """The pipeline stage of each rank, and the data-parallel rank (its pipeline); -1 for none.

    Ranks that send to each other form a pipeline. Its stages are counted from the end with the lower rank.
    Where passes are interleaved, the last stage sends to the first: then they are counted from the lowest
    rank. A job without sends, or whose pipelines are neither chains nor such rings, has no such parts.

    Returns:
        `pipeline stage` and `data-parallel rank`, each of shape (ranks,), or nothing.
    """
    pairs = [members for key, members in matched.members.items() if matched.keys[key].pair != (-1, -1)]
    return places_of_pairs(pairs, ranks)


def places_of_pairs(pairs: Iterable[Sequence[int]], ranks: int) -> dict[str, Ids]:
    """The same of the pairs of ranks that send to each other."""
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
    """The ranks of each pipeline, by stage: chains, and rings that ascend from their lowest rank."""
    pipelines: list[list[int]] = []
    known: set[int] = set()
    for row in sorted(next_to, key=lambda row: (len(next_to[row]) > 1, row)):
        if row in known:
            continue
        pipeline = _chain(row, next_to)
        known.update(pipeline)
        ascends = len(pipeline) > 2 and pipeline == sorted(pipeline)
        if len(next_to[row]) == 1 or (ascends and next_to[row] == {pipeline[1], pipeline[-1]}):
            pipelines.append(pipeline)
    return pipelines


def _chain(first: int, next_to: dict[int, set[int]]) -> list[int]:
    """From a rank to the next, as long as there is one; from the first to its lower neighbor."""
    chain, before = [first], -1
    while following := sorted(row for row in next_to[chain[-1]] if row != before):
        before = chain[-1]
        if (len(following) > 1 and len(chain) > 1) or following[0] in chain:
            break
        chain.append(following[0])
    return chain
