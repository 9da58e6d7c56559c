"""A step above another one: the pieces of both, paired by structure and not by time.

A piece's partner is what did the same on the other side: in the same stage and module, by the same
call of the same operator. What has no partner was added or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Mask, Times
from stepscope.facts.annotate.links.launches import device_work, launching_operator, of_rank, on_host
from stepscope.facts.timeline.operation_labels import short_name
from stepscope.trace.nesting import outermost
from stepscope.trace.row_order import place_in_group
from stepscope.trace.schema import IDLE_CAUSES, STAGES
from stepscope.trace.sets import Interner, distinct_rows
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_FINEST = 64  # the first resolution is so many times finer than one rectangle per slot
_FOREIGN = -2  # a module that the other side does not have
_KINDS = ("work", "communication", "idle")
_OF_NO_KIND = (None, "", "other")  # of kernels: what is not the same for having it in common
STAGE_ROW, OPERATOR_ROW, _FIRST_DEVICE = 0, 1, 2
# The columns of `_key` by which pieces are partners, level by level. At last it is the kind of kernel:
# other libraries and compilers do the same by other operators and kernels.
_LEVELS = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4), (0, 1, 2, 3), (0, 1, 6))


class PairThread(msgspec.Struct, frozen=True):
    """A row of both timelines."""

    name: str
    kind: str
    rank: int


class Rectangles(msgspec.Struct, frozen=True):
    """One of two timelines: columns of equal length, by thread and time."""

    length_us: float  # of all steps together
    thread: list[int]  # threads.id
    start_us: list[float]
    duration_us: list[float]
    name: list[str | None]  # of the longest piece that a rectangle merges; null if it has none
    stage: list[str | None]  # of the same piece
    kind: list[str | None]  # of the same piece
    tasks: list[int]  # how many pieces a rectangle merges
    event: list[int]  # id of the longest piece's raw event, -1 for a stage, idle time, or an added task
    partner: list[int]  # the rectangle of the other timeline that does the same; -1 where none does
    change_us: list[float]  # how much longer its pieces take than their partners


@dataclass(frozen=True, eq=False)
class Pieces:
    """What a step does, by thread and time; columns of one length."""

    length_ns: int  # of the step
    thread: Ids
    start_ns: Times
    end_ns: Times
    label: Ids  # neighbors with the same one may be merged where they are too short to see
    stage: Ids  # index into the stages, -1 for none
    event: Ids  # events.id, -1 for none
    names: Callable[[Ids], list[str | None]]  # of some pieces
    kinds: Callable[[Ids], list[str | None]]  # of some pieces


def align(before: Sequence[Ids], after: Sequence[Ids], levels: Sequence[Sequence[int]]) -> Ids:
    """The partner of each piece of a step in another step, -1 for none, shape (before,).

    Pieces with the same key are partners in the order in which they come. Those that have none by
    the whole key are then paired by less of it.

    Args:
        before, after: columns of the keys, codes that both sides share.
        levels: which columns are the key, level by level.

    Example:
        >>> a = [np.array([0, 0, 0]), np.array([5, 7, 7])]  # an operator, and its kernels
        >>> b = [np.array([0, 0]), np.array([7, 9])]
        >>> align(a, b, [(0, 1), (0,)]).tolist()
        [1, 0, -1]
    """
    partner = np.full(len(before[0]), -1, np.int64)
    left, other = np.arange(len(before[0])), np.arange(len(after[0]))
    for level in levels:
        if not (len(left) and len(other)):
            break
        _, code = distinct_rows(*(np.concatenate([before[at][left], after[at][other]]) for at in level))
        mine, theirs = (
            key.astype(np.int64) << 32 | place_in_group(key) for key in np.split(code, [len(left)])
        )
        _, at, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        partner[left[at]] = other[there]
        left, other = np.delete(left, at), np.delete(other, there)
    return partner


def paired(before: Pieces, after: Pieces, partner: Ids, most: int) -> tuple[Rectangles, Rectangles]:
    """Both timelines as at most `most` rectangles each, a label with work having at least one.

    Pieces too short to see are merged with their neighbors, and then have the partner and the
    change of all of them. `partner` is the piece of `after` for each one of `before`, -1 for none.
    """
    back = np.full(len(after.thread), -1, np.int64)
    matched = np.flatnonzero(partner >= 0)
    back[partner[matched]] = matched
    merged = _Merged.of(before, most), _Merged.of(after, most)
    return merged[0].against(merged[1], partner), merged[1].against(merged[0], back)


@dataclass(frozen=True, eq=False)
class _Merged:
    """Pieces, and the first of those that each rectangle merges."""

    pieces: Pieces
    first: Ids

    @classmethod
    def of(cls, pieces: Pieces, most: int) -> _Merged:
        if not len(pieces.label):
            return cls(pieces, np.zeros(0, np.int64))
        return cls(pieces, merge_short(pieces.label, pieces.start_ns, pieces.end_ns, most))

    @property
    def count(self) -> Ids:
        return np.diff(np.append(self.first, len(self.pieces.label)))

    @property
    def group(self) -> Ids:
        """The rectangle of each piece."""
        return np.repeat(np.arange(len(self.first)), self.count)

    def longest(self, among: Mask) -> Ids:
        """The longest piece of each rectangle, one of `among` where there is any."""
        group, pieces = self.group, self.pieces
        return np.lexsort((pieces.start_ns - pieces.end_ns, ~among, group))[self.first]

    def against(self, other: _Merged, partner: Ids) -> Rectangles:
        """The rectangles, with those of the other side that are their partners."""
        pieces, first, has = self.pieces, self.first, partner >= 0
        length = pieces.end_ns - pieces.start_ns
        there = other.pieces.end_ns - other.pieces.start_ns
        change = np.zeros(len(length), np.int64)
        change[has] = length[has] - there[partner[has]]
        rectangle = np.append(other.group, -1)[partner[self.longest(has)]]
        longest = self.longest(np.ones(len(length), np.bool_))
        ends = np.maximum.reduceat(pieces.end_ns, first) if len(first) else first
        sums = np.add.reduceat(change, first) if len(first) else first
        return Rectangles(
            length_us=pieces.length_ns / 1000,
            thread=pieces.thread[first].tolist(),
            start_us=(pieces.start_ns[first] / 1000).tolist(),
            duration_us=((ends - pieces.start_ns[first]) / 1000).tolist(),
            name=pieces.names(longest),
            stage=[STAGES[code] if code >= 0 else None for code in pieces.stage[longest].tolist()],
            kind=pieces.kinds(longest),
            tasks=self.count.tolist(),
            event=pieces.event[longest].tolist(),
            partner=rectangle.tolist(),
            change_us=(sums / 1000).tolist(),
        )


def _firsts(label: Ids, start: Times, end: Times, width: int) -> Ids:
    """The first interval of each merged one, at a resolution of `width` ns."""
    short = end - start < width
    together = (label[1:] == label[:-1]) & short[1:] & short[:-1]
    together &= start[1:] - end[:-1] <= width
    # A run of short intervals is cut now and then, so that its content stays visible.
    together &= start[1:] // (16 * width) == start[:-1] // (16 * width)
    return np.flatnonzero(np.append(True, ~together))


def merge_short(label: Ids, start: Times, end: Times, most: int) -> Ids:
    """Merge intervals too short to see with their neighbors, until few enough are left.

    Intervals shorter than a resolution are merged across gaps no longer than it; the finest
    resolution with few enough rectangles counts.

    Args:
        label: only neighbors with the same label are merged, shape (n,), n at least 1.
        start, end: ns, shape (n,), in order of time for each row that is drawn.
        most: the maximum; each label that has an interval keeps at least one.

    Returns:
        The first interval of each merged one, shape (merged,).
    """
    width = max(int(end.max() - start.min()) // (most * _FINEST), 1)
    first = np.arange(len(start))
    while len(first) > most:
        joined = _firsts(label, start, end, width)
        if width > end.max():
            return joined
        first, width = joined, width * 2
    return first


# -- the pieces of a recorded step


@dataclass(frozen=True)
class RecordedStep:
    """A step of a trace as it is paired: its row in `steps`."""

    trace: Trace
    rank: int
    number: int
    begin_ns: int
    end_ns: int  # of its work on either side
    took_us: float  # the next step may begin before its work ends


def pair_steps(
    before: RecordedStep, after: RecordedStep, most: int
) -> tuple[list[PairThread], Rectangles, Rectangles]:
    """Two recorded steps: stages, operators, and the work, communication and idle time of devices.

    Times are since each step began on its CPU. The n-th devices of both sides share their rows.
    """
    left, right = _StepPieces.of(before), _StepPieces.of(after)
    rows, code = np.unique(np.concatenate([left.row, right.row]), return_inverse=True)
    thread, other = np.split(code.astype(np.int64), [len(left.row)])
    keys, others = _keys(left, right)
    works, there = np.flatnonzero(~left.is_idle), np.flatnonzero(~right.is_idle)
    found = align([key[works] for key in keys], [key[there] for key in others], _LEVELS)
    partner = np.full(len(left.row), -1, np.int64)
    partner[works] = np.append(there, -1)[found]
    drawn = paired(left.pieces(thread), right.pieces(other), partner, most)
    return [_thread(row, after.rank) for row in rows.tolist()], *drawn


def _thread(row: int, rank: int) -> PairThread:
    if row < _FIRST_DEVICE:
        return PairThread(("stages", "operators")[row], "cpu", rank)
    number, kind = divmod(row - _FIRST_DEVICE, len(_KINDS))
    which = f" {number + 1}" if number else ""
    return PairThread(_KINDS[kind] + which, ("device", "communication", "idle")[kind], rank)


@dataclass(frozen=True, eq=False)
class _StepPieces:
    """The pieces of a recorded step by row and time, since the step began."""

    step: RecordedStep
    row: Ids
    start_ns: Times
    end_ns: Times
    stage: Ids
    event: Ids
    cause: Ids

    @classmethod
    def of(cls, step: RecordedStep) -> _StepPieces:
        trace, rank, number = step.trace, step.rank, step.number
        events = trace.events
        both = trace["stages"], trace["idle"]
        runs, idle = (table.take((table["rank"] == rank) & (table["step"] == number)) for table in both)
        mine = of_rank(trace, rank) & (events["step"] == number)
        work = np.flatnonzero(mine & device_work(trace) & (events["duration_ns"] > 0))
        operators = events.text("category").mask("cpu_op", "communication") & on_host(trace)
        calls = np.flatnonzero(outermost(events["parent"], operators) & mine)
        own = np.concatenate([calls, work])
        own_start, own_end = events.spans(own)
        none = np.full(len(runs), -1)
        parts = (
            np.concatenate(
                [none * 0 + STAGE_ROW, calls * 0 + OPERATOR_ROW, *_device_rows(trace, work, idle)]
            ),
            np.concatenate([runs["start_ns"], own_start, idle["start_ns"]]),
            np.concatenate([runs["end_ns"], own_end, idle["end_ns"]]),
            np.concatenate([runs["stage"], events["stage"][own], np.full(len(idle), -1)]),
            np.concatenate([none, own, np.full(len(idle), -1)]),
            np.concatenate([none, own * 0 - 1, idle["cause"]]),
        )
        row, start, end, stage, event, cause = (part.astype(np.int64) for part in parts)
        kept = np.flatnonzero(end > start)
        kept = kept[np.lexsort((start[kept], row[kept]))]
        begin = step.begin_ns
        return cls(
            step, row[kept], start[kept] - begin, end[kept] - begin, stage[kept], event[kept], cause[kept]
        )

    @property
    def is_idle(self) -> Mask:
        return self.cause >= 0

    def pieces(self, thread: Ids) -> Pieces:
        label = self.row * (len(STAGES) + 1) + self.stage
        length = self.step.end_ns - self.step.begin_ns
        kinds = np.array(["stage", "operator", *_KINDS], object)
        on_device = _FIRST_DEVICE + (self.row - _FIRST_DEVICE) % len(_KINDS)
        kind = np.where(self.row < _FIRST_DEVICE, self.row, on_device)
        columns = (thread, self.start_ns, self.end_ns, label, self.stage, self.event)
        return Pieces(length, *columns, self._names, lambda some: kinds[kind[some]].tolist())

    def _names(self, some: Ids) -> list[str | None]:
        names = self.step.trace.events.text("name")
        facts = zip(
            self.event[some].tolist(), self.stage[some].tolist(), self.cause[some].tolist(), strict=True
        )
        return [
            short_name(names[event] or "")
            if event >= 0
            else IDLE_CAUSES[cause]
            if cause >= 0
            else STAGES[stage]
            for event, stage, cause in facts
        ]


def _device_rows(trace: Trace, work: Ids, idle: Table) -> tuple[Ids, Ids]:
    """The rows of device work and of idle time."""
    events = trace.events
    device = trace["tracks"]["device"][events["track"][work]]
    devices = np.unique(np.concatenate([device, idle["device"]]))
    kind = events.text("category").mask("communication")[work]
    of_work, of_idle = (np.searchsorted(devices, one) * len(_KINDS) for one in (device, idle["device"]))
    return _FIRST_DEVICE + of_work + kind, _FIRST_DEVICE + of_idle + _KINDS.index("idle")


def _keys(before: _StepPieces, after: _StepPieces) -> tuple[list[Ids], list[Ids]]:
    """Row, stage, module, operator, its call, name and kind of each piece, as codes of both sides."""
    names: Interner[str] = Interner()
    module, other = _modules(before, after)
    return _key(before, module, names, -1), _key(after, other, names, -2)


def _key(side: _StepPieces, module: Ids, names: Interner[str], unknown: int) -> list[Ids]:
    trace, event = side.step.trace, side.event
    text = trace.events.text("name")
    codes = np.append(names.codes(text.values), -1)
    name = np.where(event >= 0, codes[text.codes[event]], side.stage)
    launch = np.where(event >= 0, launching_operator(trace)[event], -1)
    caller = np.where(launch >= 0, launch, event)
    operator = np.where(caller >= 0, codes[text.codes[caller]], -1)
    _, call = distinct_rows(side.stage, module, operator)
    of_event = trace.events.text("kind")
    kinds = [unknown if one in _OF_NO_KIND else names[one] for one in of_event.values]
    kind = np.where(event >= 0, np.append(kinds, unknown)[of_event.codes[event]], unknown)
    _, first, of = np.unique(caller, return_index=True, return_inverse=True)
    number = place_in_group(call[first])[of.ravel()] if len(first) else of  # among callers of the same call
    return [side.row, side.stage, module, operator, number, name, kind]


def _modules(before: _StepPieces, after: _StepPieces) -> tuple[Ids, Ids]:
    """The module of each piece; modules that only one side has are told apart by nothing."""
    paths: Interner[str] = Interner()
    own, other = _paths(before, paths), _paths(after, paths)
    if (own < 0).all() or (other < 0).all():
        return np.full(len(own), -1), np.full(len(other), -1)
    shared = np.append(np.intersect1d(own, other), -1)
    return np.where(np.isin(own, shared), own, _FOREIGN), np.where(np.isin(other, shared), other, _FOREIGN)


def _paths(side: _StepPieces, paths: Interner[str]) -> Ids:
    """The path of the module of each piece as a code, -1 for none."""
    trace = side.step.trace
    codes = np.append(paths.codes(path or "" for path in trace["modules"].text("path")), -1)
    return codes[np.where(side.event >= 0, trace.events["module"][side.event], -1)].astype(np.int64)
