"""The operations of a pipelined job: unbroken forward or backward work of a rank, and its balance.

Source: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, 2025:
an operation is a micro-batch's forward or backward pass through a rank, or its update. In balance
each takes the mean of its type over all ranks, micro-batches and steps.
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Array, Floats, Ids, Times
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import begins_run, places_among
from stepscope.trace.schema import STAGES
from stepscope.trace.sets import distinct_rows
from stepscope.trace.trace import Trace

KINDS = ("forward", "backward", "optimizer", "other", "host")  # the last is the time between operations
_KIND_OF = {"forward": 0, "loss": 0, "backward": 1, "optimizer": 2, "zero_grad": 2}  # others are `other`
_OTHER, _HOST = 3, 4

_MOST_UNPACKED = 16 << 20  # bytes; those of a sketch, which has 100 kB, take up to 1 MB


def unpacked(packed: bytes, kind: str, columns: int) -> Array:
    """Numbers that zlib packed, shape (columns, rows); raises ValueError or zlib.error."""
    return np.frombuffer(zlib.decompressobj().decompress(packed, _MOST_UNPACKED), kind).reshape(columns, -1)


class Passes(NamedTuple):
    """Operations of a rank in order, each int64, shape (operations,); times in ns."""

    step: Ids  # index into the sketch's steps
    kind: Ids  # index into `KINDS`
    begin_ns: Times  # on the rank's progress since its step began
    length_ns: Times  # on the rank's progress since its step began
    even_ns: Times  # its length if each of its kernels took the mean of its name on this rank

    @classmethod
    def unpack(cls, packed: bytes) -> "Passes":
        """What `pack` kept."""
        passes = cls(*unpacked(packed, "<i8", len(cls._fields)))
        return passes._replace(begin_ns=np.cumsum(passes.begin_ns))

    def pack(self) -> bytes:
        """In little room: the lengths of many operations are alike, and so are their distances."""
        if not len(self.step):
            return b""
        columns = self._replace(begin_ns=np.diff(self.begin_ns, prepend=0))
        return zlib.compress(np.stack(columns).astype("<i8").tobytes())

    def of_steps(self, steps: Ids) -> "Passes":
        rows = np.isin(self.step, steps)
        return Passes(*(column[rows] for column in self))


class _Work(NamedTuple):
    """Work of a rank by start: position of its step, kind, when it runs, and what is to be alike."""

    step: Ids
    kind: Ids
    start: Times
    end: Times
    name: Ids


def passes_of(
    trace: Trace, begins: Times, ends: Times, computing: Ids, marks: Times, waits: Intervals
) -> Passes:
    """The operations of a rank: a change of kind ends one, and so does communication.

    Args:
        begins, ends: of the steps, ns, shape (steps,).
        computing: the events that compute on a device; without any, the stages of the CPU count.
        marks: when the rank arrives at its communication, and when it goes on after it.
        waits: when it only waits for others, which is no progress.
    """
    work = _device_work(trace, computing) if len(computing) else _cpu_work(trace)
    step = np.searchsorted(begins, work.start, side="right") - 1
    inside = (step >= 0) & (work.start < np.append(ends, 0)[step])
    work = _Work(*(column[inside] for column in work._replace(step=step)))
    if not len(work.step):
        return Passes(*[np.zeros(0, np.int64)] * len(Passes._fields))
    start, end, origin = (times - waits.before(times) for times in (work.start, work.end, begins))
    number = np.searchsorted(np.sort(marks), work.start, side="right")
    turns = np.stack([work.step, work.kind, number])
    first = np.flatnonzero((np.diff(turns, axis=1, prepend=-2) != 0).any(axis=0))
    reach = np.maximum.accumulate(end)
    last = np.append(first[1:], len(start)) - 1
    begin = np.maximum(start[first], np.append(np.iinfo(np.int64).min, reach[last[:-1]]))
    of_step = work.step[first]
    even = np.add.reduceat(_means(work.kind, work.name, end - start), first)
    begin = np.maximum(begin - origin[of_step], 0)
    length = np.maximum(reach[last] - origin[of_step] - begin, 0)
    return Passes(of_step, work.kind[first], begin, length, np.rint(even).astype(np.int64))


def _device_work(trace: Trace, computing: Ids) -> _Work:
    events = trace.events
    kind = np.array([*(_KIND_OF.get(stage, _OTHER) for stage in STAGES), _OTHER])[events["stage"][computing]]
    name = events.text("name").codes[computing].astype(np.int64)
    return _Work(np.zeros(len(computing), np.int64), kind, *events.spans(computing), name)


def _cpu_work(trace: Trace) -> _Work:
    runs = trace["stages"]
    runs = runs.take(np.argsort(runs["start_ns"], kind="stable"))
    stage = runs.text("stage")
    number = np.array([*(_KIND_OF.get(name, _OTHER) for name in stage.values), _OTHER])[stage.codes]
    return _Work(np.zeros(len(runs), np.int64), number, runs["start_ns"], runs["end_ns"], number)


def _means(kind: Ids, name: Ids, length: Times) -> Floats:
    """For each piece of work the mean of those of its kind and name."""
    _, group = distinct_rows(kind, name)
    return np.asarray((np.bincount(group, length) / np.maximum(np.bincount(group), 1))[group])


class JobPasses(NamedTuple):
    """The own work of a job before each of its marks, ns; each of shape (kinds, marks)."""

    own: Floats  # as recorded
    ideal: Floats  # in balance
    level: Floats  # as recorded, but with the same total of each kind on each rank and in each step
    even: Floats  # with the total that each rank has of each kind in each step, but operations alike


def job_passes(
    passes: Sequence[Passes],
    places: Sequence[Sequence[int]],
    rank: Ids,
    step: Ids,
    progress: Floats,
    since: Floats,
) -> JobPasses | None:
    """Split the own work before each mark by kind; None where no operations are known.

    Args:
        passes: of each rank.
        places: for each rank the positions of the job's steps among its own.
        rank, step, progress: of each mark, in order, shape (marks,).
        since: the progress since the mark before, or since the step began, shape (marks,).
    """
    if not any(len(one.step) for one in passes):
        return None
    steps = int(step.max()) + 1
    fresh = begins_run(rank * steps + step)
    code, first = np.cumsum(fresh) - 1, np.flatnonzero(fresh)
    joined = [
        np.vstack([np.full(len(one.step), row), places_among(np.array(place), one.step), *one[1:]])
        for row, (one, place) in enumerate(zip(passes, places, strict=True))
    ]
    row, at_step, kind, begin, length, even = np.hstack(joined)
    turn = places_among(rank[first] * steps + step[first], row * steps + at_step)
    known = (turn >= 0) & (at_step >= 0) & (at_step < steps)
    turn, kind, begin, length, even = (column[known] for column in (turn, kind, begin, length, even))
    scale = 1.0 + max(float(progress.max(initial=0)), float((begin + length).max(initial=0)))
    begins, marks = turn * scale + begin, code * scale + progress
    own, alike = np.zeros((len(KINDS), len(code))), np.zeros((len(KINDS), len(code)))
    for number in range(_HOST):
        rows = np.flatnonzero(kind == number)
        own[number] = _between(begins[rows], length[rows], length[rows], marks, first, scale)
        alike[number] = _between(begins[rows], length[rows], even[rows], marks, first, scale)
    own[_HOST] = alike[_HOST] = np.maximum(since - own.sum(axis=0), 0)
    return _balanced(own, alike, code)


def _between(begin: Floats, length: Ids, value: Ids, marks: Floats, first: Ids, scale: float) -> Floats:
    """How much of the values of operations, which lie on the line of the marks, lies between each
    mark and the one before, (marks,); `first` are the first marks of each rank and step, which
    begin at multiples of `scale`."""
    if not len(begin):
        return np.zeros(len(marks))
    corners = np.stack([begin, begin + length], axis=1).ravel()
    total = np.cumsum(value)
    heights = np.stack([total - value, total], axis=1).ravel()
    done = np.interp(marks, corners, heights)
    before = np.append(0.0, done[:-1])
    before[first] = np.interp(np.arange(len(first)) * scale, corners, heights)
    return np.asarray(np.maximum(done - before, 0))


def _balanced(own: Floats, alike: Floats, code: Ids) -> JobPasses:
    """In balance each rank has in each step the mean of each kind, of those that have any. `own`
    and `alike` are the work before each mark, and with the operations of each rank alike; `code` is
    the number of its rank and step, shape (marks,)."""
    totals = np.array([np.bincount(code, values) for values in own])
    evens = np.array([np.bincount(code, values) for values in alike])
    mean = totals.sum(axis=1) / np.maximum((totals > 0).sum(axis=1), 1)
    per_even, per_own = (1 / np.where(each > 0, each, np.inf) for each in (evens, totals))
    ideal, level = (mean[:, None] * per for per in (per_even, per_own))
    return JobPasses(own, alike * ideal[:, code], own * level[:, code], alike * (totals * per_even)[:, code])
