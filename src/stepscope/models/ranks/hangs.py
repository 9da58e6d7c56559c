"""Why a job hangs, by the flight recorder's dumps of some or all of its ranks.

The first call of each process group that some rank waits in is compared among the group's ranks: who
has not called it, who called something else. Groups wait for each other through the ranks that are
missing, so the cause is the call whose missing ranks wait nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, groupby
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from stepscope.base.arrays import Integers, Rows
from stepscope.base.parallel import on_each
from stepscope.errors import IngestError
from stepscope.read.flight_recorder import Group, LoggedOperation, RankDump, is_dump, read_dump
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.sets import Interner

_IN_FLIGHT_S = 5.0  # chosen: a call that waits less when the dump is written is no hang
_DEFAULT = "default_pg"  # PyTorch's description of the group of all ranks
_MOST_RUNS = 6  # of ranks in a sentence
_MOST_LINKS = 4  # of a circle of ranks that wait for each other, in a sentence
_MOST_QUEUED = 100  # calls of a rank whose order is compared; chosen: more than a step has groups
_Key = tuple[int, ...]  # of a call that ranks wait in: its group, and of a send its two ranks


class Stand(msgspec.Struct, frozen=True):
    """Where ranks are: in a call, or after their last recorded one."""

    ranks: tuple[int, ...]
    call: str
    state: str  # `waits`, `timed out`, `done` or `no call`
    place: str  # `file:line (function)` of the call in the user's code; empty without a stack


class Blocked(msgspec.Struct, frozen=True):
    """A call that ranks wait in."""

    cause: str  # `disagree`, `missing`, `no dump` or `not finished`
    call: str
    sentence: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]  # have a dump, and have not called it
    odd: tuple[int, ...]  # called something else in its place
    without_dump: tuple[int, ...]
    waited_s: float  # the longest when the dumps were written, by the files' times
    timeout_s: float


class HangReport(msgspec.Struct, frozen=True):
    """What the dumps say; of `blocked` the cause comes first."""

    is_hang: bool
    sentence: str
    ranks: int  # that have a dump
    blocked: tuple[Blocked, ...]
    stands: tuple[Stand, ...]


def dumps_among(files: Iterable[Path]) -> list[Path]:
    """The flight recorder's dumps of a job; none if most of its files are traces."""
    from stepscope.read import is_trace

    every = set(files)
    dumps = set(filter(is_dump, every))
    return sorted(dumps) if len(dumps) >= sum(map(is_trace, every - dumps)) else []


def hang_in(files: Sequence[Path]) -> tuple[HangReport, list[str]]:
    """What dumps say about a hang, and why some of them could not be read; raises IngestError if none can be
    read."""
    results = on_each({path: path.stat().st_size for path in files}, read_dump, None, lambda *_: None)
    errors = [result for result in results.values() if isinstance(result, IngestError)]
    dumps = [result for result in results.values() if not isinstance(result, IngestError)]
    if not dumps:
        raise errors[0]
    # Of several dumps of a rank one with stacks, the one written last.
    dumps.sort(key=lambda dump: (len(dump.places) > 1, dump.written_ns))
    latest = {dump.rank: dump for dump in dumps}
    return hang_of([latest[rank] for rank in sorted(latest)]), [str(error) for error in errors]


def hang_of(dumps: Sequence[RankDump]) -> HangReport:
    """What a job's dumps, one a rank, say about a hang: the call, who is missing, who disagrees."""
    job = _Job(dumps)
    # The first call that is not done in each group, and between each two ranks.
    pending = groupby(sorted((job.key(row), row) for row in job.pending.tolist()), lambda pair: pair[0])
    nodes = {
        key: _message(job, key, np.array([row for _, row in rows])) if key[1:] else _collective(job, *key)
        for key, rows in pending
    }
    waits = {rank: job.key(row) for rank, row in job.first_pending.items()}
    if all(0 <= node.waited_s < _IN_FLIGHT_S and not node.is_timed_out for node in nodes.values()):
        words = "All recorded calls have finished" if not nodes else "No call had waited long"
        words = words if job.last else "No call is recorded"
        gloo = "; gloo does not record its sends" if any(dump.is_of_gloo for dump in dumps) else ""
        return HangReport(False, f"{words}: the dumps show no hang{gloo}.", len(dumps), (), job.stands())
    cause, sentence = _cause(nodes, waits)
    others = [node for key, node in nodes.items() if key != cause]
    blocked = tuple(node.shown() for node in [nodes[cause], *sorted(others, key=lambda one: one.created_ns)])
    return HangReport(True, sentence, len(dumps), blocked, job.stands())


def _cause(nodes: dict[_Key, _Node], waits: dict[int, _Key]) -> tuple[_Key, str]:
    """The call that the others wait for, and the sentence about it."""
    ordered = sorted(nodes, key=lambda key: nodes[key].created_ns)
    if odd := [key for key in ordered if nodes[key].odd]:
        return odd[0], nodes[odd[0]].sentence
    for key in ordered:
        if free := tuple(rank for rank in nodes[key].missing if rank not in waits):
            return key, replace(nodes[key], missing=free).sentence
    ordered.sort(key=lambda key: (not nodes[key].missing, not nodes[key].without_dump))
    if nodes[ordered[0]].cause == "not finished" and (crossed := _crossed(nodes[ordered[0]].job)):
        return crossed
    path = [ordered[0]]
    while nodes[path[-1]].missing:
        following = waits[nodes[path[-1]].missing[0]]
        if following in path:
            return following, _circle([nodes[key] for key in path[path.index(following) :]])
        path.append(following)
    return path[-1], nodes[path[-1]].sentence


def _crossed(job: _Job) -> tuple[_Key, str] | None:
    """Two collectives that two ranks have queued in different orders, where no rank is missing."""
    orders: dict[tuple[_Key, _Key], int] = {}
    collectives = job.pending[job.columns["peer"][job.pending] < 0]
    for rank, queued in rows_by_key(job.columns["rank"], collectives).items():
        rows = {job.key(row): row for row in queued[:_MOST_QUEUED][::-1].tolist()}
        for second, first in combinations(rows, 2):
            orders.setdefault((first, second), rank)
            if (other := orders.get((second, first))) is not None:
                earlier, later = (f"{job.call(rows[key])}{job.at(rows[key])}" for key in (first, second))
                calls = f"Rank {rank} calls {earlier}, then {later}; rank {other}"
                return first, f"{calls} calls them in the other order, and neither finishes."
    return None


def _circle(nodes: list[_Node]) -> str:
    links = [f"{node.waits} for {in_runs(node.missing)}" for node in nodes[:_MOST_LINKS]]
    job, rows = nodes[0].job, [node.row for node in nodes]
    reason = "they call in different orders, or one has left out a call"
    if len({job.value("operation", row) for row in rows}) == 1 and job.value("peer", rows[0]) < 0:
        reason = "they call the same operation on different groups"
    return f"Ranks wait for each other: {'; '.join(links)}; {reason}."


@dataclass(frozen=True)
class _Node:
    """A call that ranks wait in; `row` is the call of a rank that has made it."""

    job: _Job
    row: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...] = ()
    without_dump: tuple[int, ...] = ()
    odd: tuple[int, ...] = ()
    odd_row: int = -1
    how: str = ""
    waited_s: float = -1.0
    is_timed_out: bool = False
    created_ns: int = 0

    @property
    def cause(self) -> str:
        causes = {"disagree": self.odd, "missing": self.missing, "no dump": self.without_dump}
        return next((cause for cause, ranks in causes.items() if ranks), "not finished")

    @property
    def call(self) -> str:
        return self.job.call(self.row)

    @property
    def waits(self) -> str:
        """Who waits in it, and where."""
        return f"{_does(self.waiting, 'waits', 'wait')} in {self.call}{self.job.at(self.row)}"

    @property
    def sentence(self) -> str:
        job, call = self.job, f"{self.call}{self.job.at(self.row)}"
        if self.odd:
            usual = [rank for rank in job.callers(self.row) if rank not in self.odd]
            text = (
                f"{_does(self.odd, 'calls', 'call')} {job.call(self.odd_row)}{job.at(self.odd_row)}, where "
                f"{_does(usual, 'calls', 'call')} {call}{self.how}"
            )
        elif self.missing:
            text = self._lacking()
        elif self.without_dump:
            text = f"all ranks with a dump have called {call}"
            if job.value("peer", self.row) >= 0:
                text = self.waits
            text += f", and {in_runs(self.without_dump)} left no dump"
        else:
            text = f"{_does(job.callers(self.row), 'calls', 'call')} {call} alike, and it does not finish: "
            text += "its transfer stalls on the network or a device"
            if job.groups[job.value("group", self.row)].is_assumed:
                text += ", or a rank is missing that the dumps do not list"
        timeout = f" It timed out after {job.value('timeout_ms', self.row) / 1e3:,.0f} s."
        return f"{text[:1].upper()}{text[1:]}.{timeout if self.is_timed_out else ''}"

    def _lacking(self) -> str:
        """Who waits for whom; the fewer ranks come first."""
        job, last = self.job, self.job.last.get(self.missing[0], -1)
        call = self.call
        if job.value("peer", self.row) >= 0:
            call = f"the {'recv' if job.value('is_send', self.row) else 'send'} of {call}"
        have = f"{_does(self.missing, 'has', 'have')} not called"
        text = f"{have} {call}, in which {_does(self.waiting, 'waits', 'wait')}{job.at(self.row)}"
        if len(self.missing) > len(self.waiting):
            text = f"{self.waits}, which {have}"
        if last < 0:
            return text
        return f"{text}; the last call of {in_runs(self.missing[:1])} was {job.call(last)}{job.at(last)}"

    def shown(self) -> Blocked:
        ranks = (self.waiting, self.missing, self.odd, self.without_dump)
        times = (round(self.waited_s, 3), self.job.value("timeout_ms", self.row) / 1e3)
        return Blocked(self.cause, self.call, self.sentence, *ranks, *times)


def _collective(job: _Job, group: int) -> _Node:
    """The call of a group that its ranks disagree about, else the first that waits."""
    rows = job.collectives[group]
    rows = rows[np.argsort(job.columns["sequence"][rows], kind="stable")]
    sequence, ranks = job.columns["sequence"][rows], job.columns["rank"][rows]
    reached = dict(zip(ranks.tolist(), sequence.tolist(), strict=True))  # the last of each rank
    members = set(job.groups[group].members) | reached.keys()
    at, differs_at = int(sequence[job.columns["is_done"][rows] == 0][0]), _disagreement(job, rows)
    is_complete = all(reached.get(rank, 0) >= at for rank in members & job.dumps.keys())
    if differs_at is not None and (differs_at <= at or is_complete):
        at = differs_at
    missing = [rank for rank in members & job.dumps.keys() if reached.get(rank, 0) < at]
    here = rows[sequence == at]
    node = _node(job, here, missing, members - job.dumps.keys())
    codes = job.columns["operation"][here]
    usual = Counter(codes.tolist()).most_common(1)[0][0]
    odd, row = here[codes != usual], int(here[codes == usual][0])
    if not len(odd) or set(_ranks(job, here)) == set(_ranks(job, odd)):  # or one rank counts two calls alike
        return node
    how = _how(job, rows, row, int(odd[0]))
    return replace(node, row=row, odd=_ranks(job, odd), odd_row=int(odd[0]), how=how)


def _disagreement(job: _Job, rows: Rows) -> int | None:
    """The first number of a group's call whose ranks call different things.

    Other sizes count where somebody waits, since there are operations that take them.
    """
    sequence, codes = job.columns["sequence"][rows], job.columns["operation"][rows]
    first = np.flatnonzero(np.diff(sequence, prepend=-1))
    names = job.name_of[codes]
    other_name = np.minimum.reduceat(names, first) != np.maximum.reduceat(names, first)
    other_size = np.minimum.reduceat(codes, first) != np.maximum.reduceat(codes, first)
    waits = np.minimum.reduceat(job.columns["is_done"][rows], first) == 0
    differs = first[other_name | (other_size & waits)]
    return int(sequence[differs[0]]) if len(differs) else None


def _how(job: _Job, rows: Rows, usual: int, odd: int) -> str:
    """What the next calls of two ranks say about why they differ."""
    codes, sequence, ranks = (job.columns[name][rows] for name in ("operation", "sequence", "rank"))
    at = sequence == job.value("sequence", odd) + 1
    after_odd, after_usual = (codes[at & (ranks == job.value("rank", row))] for row in (odd, usual))
    comes_later = job.value("operation", usual) in after_odd
    came_early = job.value("operation", odd) in after_usual
    way = "makes these calls in another order" if comes_later else "has left out a call"
    if comes_later and not came_early:
        way = "makes a call that the others do not"
    return f": {in_runs([job.value('rank', odd)])} {way}" if comes_later or came_early else ""


def _message(job: _Job, key: _Key, rows: Rows) -> _Node:
    """The first send or recv between two ranks that is not done; of those in `rows`."""
    _, source, target = key
    columns = job.columns
    sends, recvs = rows[columns["is_send"][rows] != 0], rows[columns["is_send"][rows] == 0]
    absent = {target if len(sends) else source} if not (len(sends) and len(recvs)) else set()
    here = np.array([int(part[0]) for part in (sends, recvs) if len(part)])
    node = _node(job, here, absent & job.dumps.keys(), absent - job.dumps.keys())
    sizes = {job.operations[job.value("operation", row)].sizes for row in here.tolist()}
    return node if len(sizes) < 2 or source == target else replace(node, odd=(target,), odd_row=int(here[1]))


def _node(job: _Job, rows: Rows, missing: Iterable[int], without_dump: Iterable[int]) -> _Node:
    columns = {name: column[rows] for name, column in job.columns.items()}
    waits = columns["is_done"] == 0
    waited_ns = (columns["written_ns"] - columns["created_ns"])[waits]
    return _Node(
        job,
        int(rows[np.flatnonzero(waits)[0]]) if waits.any() else int(rows[0]),
        _ranks(job, rows[waits]),
        tuple(sorted(missing)),
        tuple(sorted(without_dump)),
        waited_s=float(waited_ns.max(initial=-1)) / 1e9,
        is_timed_out=bool(columns["is_timed_out"].any()),
        created_ns=int(columns["created_ns"].min()),
    )


def _ranks(job: _Job, rows: Rows) -> tuple[int, ...]:
    return tuple(np.unique(job.columns["rank"][rows]).tolist())


class _Group(NamedTuple):
    label: str
    members: tuple[int, ...]
    is_assumed: bool = False  # if these are the ranks that have called it


class _Job:
    """The calls of all ranks in one table, oldest first for each rank."""

    def __init__(self, dumps: Sequence[RankDump]) -> None:
        self.dumps = {dump.rank: dump for dump in dumps}
        operations, places, groups = Interner[LoggedOperation](), Interner[str](), Interner[Group]()
        parts = []
        for dump in dumps:
            calls, rows = dump.calls, len(dump.calls["group"])
            own: dict[str, Integers] = {
                **calls,
                "operation": operations.codes(dump.operations).astype(np.int64)[calls["operation"]],
                "place": places.codes(dump.places).astype(np.int64)[calls["place"]],
                "group": groups.codes(dump.groups).astype(np.int64)[calls["group"]],
                "rank": np.full(rows, dump.rank, np.int64),
                "written_ns": np.full(rows, dump.written_ns, np.int64),
            }
            parts.append(own)
        self.columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.operations, self.places = list(operations), list(places)
        self.name_of = Interner[str]().codes(operation.name for operation in operations)
        ranks, self.pending = self.columns["rank"], np.flatnonzero(self.columns["is_done"] == 0)
        listed = (rank for dump in dumps for group in dump.groups for rank in group.members)
        self._everyone = cache(lambda: tuple(sorted({*listed, *self.dumps})))
        self._calls = rows_by_key(self.columns["group"])
        self.groups = [self._group(code, group) for group, code in groups.items()]
        self.collectives = rows_by_key(self.columns["group"], np.flatnonzero(self.columns["peer"] < 0))
        for group in {groups[dump.groups[row]] for dump in dumps for row in dump.drifting}:
            if group in self.collectives:
                self._align(self.collectives[group])
        self.last = {rank: row for row, rank in enumerate(ranks.tolist())}
        self.first_pending: dict[int, int] = {int(ranks[row]): row for row in self.pending[::-1].tolist()}

    def _align(self, rows: Rows) -> None:
        """Number a group's calls so that all ranks have the same number for the last that is done."""
        sequence, done = self.columns["sequence"], self.columns["is_done"] != 0
        parts = rows_by_key(self.columns["rank"], rows).values()
        last = [int(sequence[part[done[part]]].max(initial=sequence[part].min() - 1)) for part in parts]
        for part, number in zip(parts, last, strict=True):
            sequence[part] += max(last) - number

    def _group(self, code: int, group: Group) -> _Group:
        """A group; where the dumps do not list its members, all ranks, or those that have called it."""
        label = group.description if group.description not in ("", "undefined") else group.name
        if group.members:
            listing = "" if label == _DEFAULT else f" ({in_runs(group.members)})"
            return _Group(label + listing, group.members)
        if label != _DEFAULT:
            return _Group(label, _ranks(self, self._calls.get(code, self.pending[:0])), True)
        return _Group(label, self._everyone())

    def value(self, name: str, row: int) -> int:
        """One number of the table."""
        return int(self.columns[name][row])

    def key(self, row: int) -> _Key:
        """The group of a collective; of a send or recv also its two ranks."""
        group, peer, rank = (self.value(name, row) for name in ("group", "peer", "rank"))
        if peer < 0:
            return (group,)
        return (group, rank, peer) if self.value("is_send", row) else (group, peer, rank)

    def callers(self, row: int) -> tuple[int, ...]:
        """The ranks that have made this call; of a send or recv its two ranks."""
        if self.value("peer", row) >= 0:
            return self.key(row)[1:]
        rows = self.collectives[self.value("group", row)]
        return _ranks(self, rows[self.columns["sequence"][rows] == self.value("sequence", row)])

    def call(self, row: int) -> str:
        """`all_reduce #6 (1,024 Float) of default_pg`."""
        operation = self.operations[self.value("operation", row)]
        key = self.key(row)
        number = f"{key[1]} to {key[2]}" if len(key) > 1 else f"#{self.value('sequence', row)}"
        sizes = f" ({operation.sizes})" if operation.sizes else ""
        return f"{operation.name} {number}{sizes} of {self.groups[key[0]].label}"

    def at(self, row: int) -> str:
        """` at train.py:7 (step)`, empty without a stack."""
        place = self.places[self.value("place", row)]
        return f" at {place}" if place else ""

    def stands(self) -> tuple[Stand, ...]:
        """Where each rank is, alike ones together: in its oldest call that waits, else after its last."""
        alike: dict[tuple[str, str, str], list[int]] = {}
        for rank in self.dumps:
            words = ("", "no call", "")
            row = self.first_pending.get(rank, self.last.get(rank, -1))
            if row >= 0:
                state = "timed out" if self.value("is_timed_out", row) else "waits"
                state = "done" if self.value("is_done", row) else state
                words = (self.call(row), state, self.places[self.value("place", row)])
            alike.setdefault(words, []).append(rank)
        return tuple(Stand(tuple(ranks), *words) for words, ranks in alike.items())


def in_runs(ranks: Sequence[int]) -> str:
    """Ranks in ascending order, in words.

    Example:
        >>> in_runs([3]), in_runs([0, 1, 2, 5])
        ('rank 3', 'ranks 0-2, 5')
    """
    groups = groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])  # alike within a run
    ends = [(run[0][1], run[-1][1]) for run in (list(each) for _, each in groups)]
    runs = [f"{first}-{last}" if last > first else str(first) for first, last in ends]
    more = ", …" if len(runs) > _MOST_RUNS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(runs[:_MOST_RUNS])}{more}"


def _does(ranks: Sequence[int], verb: str, verbs: str) -> str:
    return f"{in_runs(ranks)} {verb if len(ranks) == 1 else verbs}"
