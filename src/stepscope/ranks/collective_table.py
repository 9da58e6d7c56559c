"""The collectives of one rank as a table: what they move, what they take, and what hides them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.annotate.device.host_idle import busy_time
from stepscope.arrays import Ids, Rows
from stepscope.ranks.calls import ranks_in_short
from stepscope.ranks.collective_calls import collective_calls
from stepscope.ranks.collectives import wire_factor
from stepscope.ranks.meetings import Meetings, meetings_of
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import COMPUTING, STAGES
from stepscope.trace.trace import Trace

_MS = 1e-6


class CollectiveRow(msgspec.Struct, frozen=True):
    """Collectives of one kind on one process group; counts and times are means per step.

    Attributes:
        kind: such as `allreduce`.
        group: name of the process group, as recorded; empty if unknown.
        ranks: its ranks in short, such as `0-7`; empty if unknown.
        members: how many ranks; None if unknown.
        bytes: of the median call; None if not recorded.
        total_ms: time in all calls, including the wait for other ranks.
        exposed_ms: the part in which the rank computes nothing.
        wait_ms: the part until the last rank arrives; None if the trace holds no other member.
        transfer_ms: of the median call, after the last rank has arrived; if the trace holds no
            other member, its duration.
        algorithm_gbs, bus_gbs: bandwidth of the transfer as NCCL's tests define it, GB/s, of the
            median call; None without bytes or members.
        last_rank: the rank that most often arrives last; None if the trace holds no other member.
        last_share: the share of the calls in which it does.
        stages: share of the row's time in each known stage.
        longest_event: id of the longest call.
    """

    kind: str
    group: str
    ranks: str
    members: int | None
    count: float
    bytes: int | None
    total_ms: float
    exposed_ms: float
    wait_ms: float | None
    transfer_ms: float
    algorithm_gbs: float | None
    bus_gbs: float | None
    last_rank: int | None
    last_share: float | None
    stages: dict[str, float]
    longest_event: int


class CollectiveTable(msgspec.Struct, frozen=True):
    """The collectives of one rank, those with the most exposed time first; ms per step.

    Attributes:
        rank: whose.
        steps: numbers of the steps that times are means of.
        step_ms: the step length.
        total_ms: time in which any collective runs.
        exposed_ms: the part in which the rank computes nothing.
        late_ms: for each rank how much later it arrives than the median rank, at all kinds of
            collectives together; empty for one rank.
    """

    rank: int
    steps: list[int]
    step_ms: float
    total_ms: float
    exposed_ms: float
    late_ms: dict[int, float]
    rows: list[CollectiveRow]


def has_collectives(trace: Trace) -> bool:
    """Whether any event of the trace is communication."""
    return bool(trace.events.text("category").mask("communication").any())


def collective_table(trace: Trace, rank: int, step: int | None = None) -> CollectiveTable:
    """What the collectives of a rank take, by kind and process group.

    All ranks leave a collective together: of the members that the trace holds, the one with the
    shortest call arrived last, and the excess of the others is their wait.

    Args:
        trace: an annotated trace, of one rank or of several.
        rank: whose collectives.
        step: number of one step; by default the mean over all steps but a warm-up step.

    Raises:
        TraceError: if there is no such rank or step.

    Example:
        >>> collective_table(stepscope.open("job"), 0).exposed_ms  # doctest: +SKIP
    """
    selected = SelectedSteps(trace, rank, step)
    calls, keys, key = collective_calls(trace, selected.steps["step"])
    met = meetings_of(trace, calls, key, [kind for kind, *_ in keys])
    table = _Table(selected, calls, key, met, _computing(selected))
    rows = [table.row(number, keys[number]) for number in np.unique(key[table.mine]).tolist()]
    mine = calls[table.mine]
    return CollectiveTable(
        rank,
        selected.steps["step"].tolist(),
        selected.length_ns * _MS / selected.count,
        _spans(trace, mine).total() * _MS / selected.count,
        table.exposed_ns(mine) * _MS / selected.count,
        met.late_ms(key, selected.count),
        sorted(rows, key=lambda row: (-row.exposed_ms, -row.total_ms, row.kind)),
    )


@dataclass(frozen=True)
class _Table:
    """The calls of all ranks in the selected steps, and what one rank computes meanwhile."""

    selected: SelectedSteps
    calls: Rows
    key: Ids
    met: Meetings
    computing: dict[int, Intervals]

    @property
    def mine(self) -> Rows:
        """The calls of the selected rank, by position."""
        found: Rows = np.flatnonzero(self.met.rank == self.selected.rank)
        return found

    def exposed_ns(self, rows: Rows) -> int:
        """Time in which `rows` run and their device computes nothing."""
        trace = self.selected.trace
        device = trace["tracks"]["device"][trace.events["track"][rows]]
        total = 0
        for one in np.unique(device).tolist():
            calls = _spans(trace, rows[device == one])
            total += calls.minus(self.computing.get(one, Intervals([], []))).total()
        return total

    def row(self, number: int, key: tuple[str, ...]) -> CollectiveRow:
        """The calls of the rank with one key."""
        trace, count = self.selected.trace, self.selected.count
        calls = self.mine[self.key[self.mine] == number]
        rows = self.calls[calls]
        duration = trace.events["duration_ns"][rows]
        members = self.met.members(calls) or _size(key)
        transfer, others = self.met.transfer_ns[calls], self.met.others[calls]
        known = trace.events["bytes"][rows]
        sizes = known[known >= 0]
        rate = _rate(known, transfer)
        factor = wire_factor(key[0], members) if members else None
        last, share = self.met.last(calls)
        return CollectiveRow(
            kind=key[0], group=key[1], ranks=ranks_in_short(key[2]), members=members,
            count=len(calls) / count, bytes=int(np.median(sizes)) if len(sizes) else None,
            total_ms=float(duration.sum()) * _MS / count,
            exposed_ms=self.exposed_ns(rows) * _MS / count,
            wait_ms=float((duration - transfer).sum()) * _MS / count if others.any() else None,
            transfer_ms=float(np.median(transfer)) * _MS, algorithm_gbs=rate,
            bus_gbs=rate * factor if rate is not None and factor is not None else None,
            last_rank=last, last_share=share, stages=_stages(trace, rows),
            longest_event=int(rows[duration.argmax()]),
        )  # fmt: skip


def _rate(size: Ids, transfer: Ids) -> float | None:
    """Bytes per ns of the median call, which are GB/s."""
    known = (size > 0) & (transfer > 0)
    return float(np.median(size[known] / transfer[known])) if known.any() else None


def _size(key: tuple[str, ...]) -> int | None:
    return int(key[3]) if key[3].isdecimal() else None


def _stages(trace: Trace, rows: Rows) -> dict[str, float]:
    stage, duration = trace.events["stage"][rows], trace.events["duration_ns"][rows]
    whole = max(int(duration.sum()), 1)
    return {
        STAGES[code]: float(duration[stage == code].sum()) / whole
        for code in np.unique(stage[stage >= 0]).tolist()
    }


def _spans(trace: Trace, rows: Rows) -> Intervals:
    start = trace.events["start_ns"][rows]
    return Intervals(start, start + trace.events["duration_ns"][rows])


def _computing(selected: SelectedSteps) -> dict[int, Intervals]:
    """When each device of the rank computes or copies; without one (-1) when a thread is busy."""
    trace, events = selected.trace, selected.trace.events
    tracks = trace["tracks"]
    device = tracks["device"][events["track"]]
    rank = tracks["rank"][events["track"]] == selected.rank
    work = rank & events.text("category").mask(*COMPUTING) & (device >= 0)
    if work.any():
        return {one: _spans(trace, np.flatnonzero(work & (device == one)))
                for one in np.unique(device[work]).tolist()}  # fmt: skip
    return {-1: busy_time(trace, selected.rank, selected.steps)}
