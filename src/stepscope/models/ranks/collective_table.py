"""The collectives of a trace: of one rank by process group, and of all ranks by who waits."""

from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Rows
from stepscope.facts.annotate.device.idle import busy_time
from stepscope.facts.summary.selected_steps import MS, SelectedSteps
from stepscope.models.ranks.collectives import Matched, match_trace, wire_factor
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import COMPUTING, STAGES
from stepscope.trace.trace import Trace

_MOST_ROWS = 40  # of the matrix: as many as a screen shows


class CollectiveRow(msgspec.Struct, frozen=True):
    """Collectives of one kind on one process group; counts and times are means per step."""

    kind: str  # such as `allreduce`
    group: str  # name of the process group, as recorded; empty if unknown
    ranks: str  # its ranks in short, such as `0-7`; empty if unknown
    members: int | None  # how many ranks; None if unknown
    count: float
    bytes: int | None  # of the median call; None if not recorded
    total_ms: float  # time in all calls, including the wait for other ranks
    exposed_ms: float  # the part in which the rank computes nothing
    wait_ms: float | None  # the part until the last rank arrives; None if the trace holds no other member
    # of the median call, after the last rank has arrived; if the trace holds no other member, its duration
    transfer_ms: float
    # bandwidth of the transfer as NCCL's tests define it, GB/s, of the median call; None without bytes or
    # members
    algorithm_gbs: float | None
    bus_gbs: float | None
    last_rank: int | None  # the rank that most often arrives last; None if the trace holds no other member
    last_share: float | None  # the share of the calls in which it does
    stages: dict[str, float]  # share of the row's time in each known stage
    longest_event: int  # id of the longest call


class Arrival(msgspec.Struct, frozen=True):
    """A rank at the collectives of a step."""

    rank: int
    # how much later it arrives than the median rank, ms per step; less than zero for one that waits longer
    late_ms: float


class Collectives(msgspec.Struct, frozen=True):
    """The collectives of one rank, those with the most exposed time first; ms per step."""

    rank: int
    steps: list[int]  # numbers of the steps that times are means of
    step_ms: float  # the step length
    total_ms: float  # time in which any collective runs
    exposed_ms: float  # the part in which the rank computes nothing
    arrivals: list[Arrival]  # of all ranks of the trace, the latest first; empty for one rank
    rows: list[CollectiveRow]


class ArrivalRow(msgspec.Struct, frozen=True):
    """A collective of the step, or several of one kind; times are means per step."""

    kind: str  # such as `allreduce`
    groups: str  # its process groups: the name of one, or how many of how many ranks
    nth: int | None  # which of the step's collectives of this kind and group, from 1; None for all of them
    calls: float  # collectives in a step
    # how much later each rank of the matrix arrives than the median rank of its group; less than zero for
    # one that waits longer, None for one that takes no part
    late_ms: list[float | None]
    last_rank: int  # the rank that most often arrives last
    last_share: float  # the share of the collectives in which it does
    waiting_rank: int  # the rank that waits longest for the last one
    wait_ms: float  # how long it waits
    event: int  # id of the last rank's call at the collective that it keeps waiting longest


class ArrivalMatrix(msgspec.Struct, frozen=True):
    """How late each rank arrives at the collectives that the trace holds of several ranks."""

    steps: list[int]  # numbers of the steps that times are means of
    step_ms: float  # the step length
    ranks: list[int]  # that take part in any, ascending
    rows: list[ArrivalRow]  # in the order in which they begin; the most costly of many
    left: int  # how many rows are left out


def has_collectives(trace: Trace) -> bool:
    """Whether any event of the trace is communication."""
    return bool(trace.events.text("category").mask("communication").any())


def collective_table(trace: Trace, rank: int, step: int | None = None) -> Collectives:
    """What the collectives of a rank take, by kind and process group, in one step, by default the
    mean over all but a warm-up step; raises TraceError if there is no such rank or step."""
    selected = SelectedSteps(trace, rank, step)
    events, matched = match_trace(trace, selected.steps["step"])
    mine = np.flatnonzero(matched.rank == rank)
    table = _Table(selected, events, matched, _computing(selected))
    rows = [table.row(key, calls) for key, calls in rows_by_key(matched.key, mine).items()]
    met = np.flatnonzero(matched.meeting >= 0)
    late = matched.late_ns(met, int(matched.rank.max(initial=0)) + 1) * MS / selected.count
    ranks = np.unique(matched.rank[met])
    return Collectives(
        rank,
        selected.steps["step"].tolist(),
        selected.length_ns * MS / selected.count,
        Intervals(*trace.events.spans(events[mine])).total() * MS / selected.count,
        table.exposed_ns(events[mine]) * MS / selected.count,
        sorted(map(Arrival, ranks.tolist(), late[ranks].tolist()), key=lambda arrival: -arrival.late_ms),
        sorted(rows, key=lambda row: (-row.exposed_ms, -row.total_ms, row.kind)),
    )


@dataclass(frozen=True)
class _Table:
    """The calls of all ranks in the selected steps, and what one rank computes meanwhile."""

    selected: SelectedSteps
    events: Rows
    matched: Matched
    computing: dict[int, Intervals]

    def exposed_ns(self, events: Rows) -> int:
        """Time in which calls run and their device computes nothing."""
        trace = self.selected.trace
        device = trace["tracks"]["device"][trace.events["track"][events]]
        total = 0
        for number in np.unique(device).tolist():
            calls = Intervals(*trace.events.spans(events[device == number]))
            total += calls.minus(self.computing.get(number, Intervals([], []))).total()
        return total

    def row(self, number: int, calls: Rows) -> CollectiveRow:
        trace, count, matched = self.selected.trace, self.selected.count, self.matched
        key, events = matched.keys[number], self.events[calls]
        met = matched.meeting[calls][matched.meeting[calls] >= 0]
        members = max(key.size, int(np.median(matched.sizes[met])) if len(met) else 0) or None
        duration, waited = matched.columns.duration_ns[calls], matched.waited_ns[calls]
        size, transfer = matched.columns.sent[calls], duration - waited
        sizes, timed = size[size >= 0], (size > 0) & (transfer > 0)
        rate = float(np.median(size[timed] / transfer[timed])) if timed.any() else None  # bytes per ns
        last, share = matched.last(calls) or (None, None)
        return CollectiveRow(
            kind=key.kind,
            group=key.group,
            ranks=key.ranks,
            members=members,
            count=len(calls) / count,
            bytes=int(np.median(sizes)) if len(sizes) else None,
            total_ms=float(duration.sum()) * MS / count,
            exposed_ms=self.exposed_ns(events) * MS / count,
            wait_ms=float(waited.sum()) * MS / count if len(met) else None,
            transfer_ms=float(np.median(transfer)) * MS,
            algorithm_gbs=rate,
            bus_gbs=rate * wire_factor(key.kind, members) if rate and members else None,
            last_rank=last,
            last_share=share,
            stages=_stages(trace, events),
            longest_event=int(events[duration.argmax()]),
        )


def _stages(trace: Trace, rows: Rows) -> dict[str, float]:
    stage, duration = trace.events["stage"][rows], trace.events["duration_ns"][rows]
    whole = max(int(duration.sum()), 1)
    return {
        STAGES[code]: float(duration[stage == code].sum()) / whole
        for code in np.unique(stage[stage >= 0]).tolist()
    }


def _computing(selected: SelectedSteps) -> dict[int, Intervals]:
    """When each device of the rank computes or copies; without one (-1) when a thread is busy."""
    trace, events = selected.trace, selected.trace.events
    tracks = trace["tracks"]
    device = tracks["device"][events["track"]]
    rank = tracks["rank"][events["track"]] == selected.rank
    work = rank & events.text("category").mask(*COMPUTING) & (device >= 0)
    if work.any():
        return {
            one: Intervals(*events.spans(work & (device == one))) for one in np.unique(device[work]).tolist()
        }
    return {-1: busy_time(trace, selected.rank, selected.steps)}


def arrival_matrix(trace: Trace, rank: int, step: int | None = None) -> ArrivalMatrix:
    """How late each rank comes to each collective of a step, by default of all but a warm-up step;
    raises TraceError if there is no such rank or step.

    A row is the n-th collective of its kind on its process group in a step. If there are many, it is all
    those on the group, and if there are many groups, all those of one kind on groups of one size.
    """
    selected = SelectedSteps(trace, rank, step)
    events, matched = match_trace(trace, selected.steps["step"])
    met = np.flatnonzero(matched.meeting >= 0)
    row, is_single = _numbered(matched, met)
    cost = np.bincount(row, matched.waited_ns[met])
    shown = np.sort(np.argsort(-cost, kind="stable")[:_MOST_ROWS]).tolist()
    ranks = np.unique(matched.rank[met])
    rows = [_arrivals(events, matched, met[row == one], is_single, ranks, selected.count) for one in shown]
    step_ms = selected.length_ns * MS / selected.count
    numbers = selected.steps["step"].tolist()
    return ArrivalMatrix(numbers, step_ms, ranks.tolist(), rows, len(cost) - len(rows))


def _numbered(matched: Matched, met: Rows) -> tuple[Ids, bool]:
    """The row of each call, by when rows begin; and whether a row is one collective of a step."""
    kinds = [one.kind for one in matched.keys]
    key, nth = matched.key[met], matched.nth[met]
    kind = np.array([kinds.index(name) for name in kinds], np.int64)[key]
    for columns in ([key, nth], [key], [kind, matched.sizes[matched.meeting[met]]]):
        _, first, row = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        if len(first) <= _MOST_ROWS:
            break
    place = np.argsort(np.argsort(first))  # calls are in order of their start
    return place[row.ravel()].astype(np.int64), columns[-1] is nth


def _arrivals(
    events: Rows, matched: Matched, calls: Rows, is_single: bool, ranks: Ids, steps: int
) -> ArrivalRow:
    latest, share = matched.last(calls) or (-1, 0.0)
    meetings = np.unique(matched.meeting[calls])
    last = matched.first[meetings]
    waited = np.bincount(matched.rank[calls], matched.waited_ns[calls], int(ranks[-1]) + 1)[ranks]
    late = matched.late_ns(calls, int(ranks[-1]) + 1)[ranks] * MS / steps
    kept = np.where(matched.rank[last] == latest, matched.skew_ns[meetings], -1)
    keys = np.unique(matched.key[calls])
    key = matched.keys[int(keys[0])]
    return ArrivalRow(
        kind=key.kind,
        groups=(key.group or key.ranks)
        if len(keys) == 1
        else f"{len(keys)} groups of {int(matched.sizes[meetings[0]])}",
        nth=int(matched.nth[calls[0]]) + 1 if is_single else None,
        calls=len(meetings) / steps,
        late_ms=[None if np.isnan(one) else round(one, 6) for one in late.tolist()],
        last_rank=latest,
        last_share=share,
        waiting_rank=int(ranks[waited.argmax()]),
        wait_ms=float(waited.max()) * MS / steps,
        event=int(events[last[kept.argmax()]]),
    )
