"""Events that a file holds more than once: a trace twice in one file, a recorder that writes twice.

Times, shares and counts would all be too large. Equal means equal in all that is recorded: phase,
category, name, track, time, duration, id and arguments. Traces hold some such events by nature, so
copies are dropped only where they are a large part of a file or of one of its categories.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Codes, Ids, Mask, Rows
from stepscope.read.chrome.event_columns import RecordedEvents
from stepscope.read.chrome.slices import ARROWS, ASYNC, STACKED
from stepscope.trace.row_order import begins_run

_SAMPLED = 1 << 8  # events, spread over the file
_FEW = 4  # of the sampled events: with fewer twins among them nothing is searched
_LARGE = 0.25  # of the events of a file: they are copies
_NEARLY_ALL, _LEAST = 0.8, 16  # of the events of a category
_NOTED = 0.05  # of the events of a file: fewer are no warning
_TABLE = 65_521  # ns: a prime, as times may all be multiples of 1,000 ns; fits into a core's cache
_NO_DURATION = -1.0


class _Groups(NamedTuple):
    """Equal events together, and in file order within a group; columns of shape (n,)."""

    rows: Rows  # of events
    group: Ids  # number of the group of each, ascending
    size: Ids  # of this group
    place: Ids  # in this group, from 0


def drop_repeated_events(recorded: RecordedEvents) -> None:
    """Keep one of each event that is in the file several times, if many are, and warn.

    An event that a copy of the trace holds twice stays twice. Of events that begin and end apart,
    equal ones may be nested, as of a function that calls itself, so that only nearly all of them
    count as copies.
    """
    if _sampled_twins(recorded) < _FEW:
        return
    groups = _equal_events(recorded, np.flatnonzero(recorded.usable))
    timed = _durations(recorded, groups.rows) != 0
    repeated = groups.size > 1
    share = float((repeated & timed).sum()) / max(int(timed.sum()), 1)
    apart = _of_phases(recorded, {*STACKED, *ASYNC})
    kind = np.where(apart, len(apart), np.arange(len(apart)))[recorded.phase[groups.rows]]
    large = (share >= _LARGE) & (kind < len(apart))
    chosen = repeated & (large | _nearly_all(kind, repeated, timed))
    if not chosen.any():
        message = "events are in the file more than once, with equal times and arguments; all count"
        whole = kind < len(apart)
        share = float((repeated & timed & whole).sum()) / max(int(timed.sum()), 1)
        noted = int((whole & (groups.place > 0)).sum()) if share >= _NOTED else 0
        recorded.log("repeated_events", message, noted)
        return
    copies = int(np.bincount(groups.size[chosen]).argmax())
    extra = groups.rows[chosen & (groups.place >= -(-groups.size // copies))]
    recorded.usable[extra] = False
    message = "events are in the file more than once, with equal times and arguments; one of each "
    recorded.log("repeated_events", message + "counts", len(extra))


def _sampled_twins(recorded: RecordedEvents) -> int:
    """How many of some events, spread over the file, have an equal one as far as columns say.

    Arrows are left aside: many may end in one event, and only their ids differ.
    """
    time = recorded.time_ns
    sample = np.unique(np.linspace(0, len(time) - 1, min(_SAMPLED, len(time))).astype(np.intp))
    arrow = _of_phases(recorded, ARROWS)
    sample = sample[recorded.usable[sample] & ~arrow[recorded.phase[sample]]]
    sample = sample[_durations(recorded, sample) != 0]
    near = np.zeros(_TABLE, np.bool_)
    near[time[sample] % _TABLE] = True
    rows = np.flatnonzero(near[time % _TABLE])  # and a few more, whose times differ by its size
    groups = _groups(recorded, rows[recorded.usable[rows]])
    return int(np.isin(groups.rows[groups.size > 1], sample).sum())


def _of_phases(recorded: RecordedEvents, letters: Collection[str]) -> Mask:
    return np.array([phase in letters for phase, _ in recorded.phases], np.bool_)


def _durations(recorded: RecordedEvents, rows: Rows) -> np.typing.NDArray[np.float64]:
    """Of each event, µs; -1 if it has none."""
    duration = recorded.columns.column("duration_us")[rows]
    return np.where(np.isnan(duration), _NO_DURATION, duration)


def _equal_events(recorded: RecordedEvents, rows: Rows) -> _Groups:
    """Events of which all that is recorded is equal."""
    groups = _groups(recorded, rows, recorded.columns.identity)
    candidates = np.sort(groups.rows[groups.size > 1])
    codes = np.zeros(len(recorded.time_ns), np.int64)
    codes[candidates] = _argument_codes(recorded, candidates)
    return _groups(recorded, rows, recorded.columns.identity, codes)


def _argument_codes(recorded: RecordedEvents, rows: Rows) -> Ids:
    """A number for the arguments of each event, ascending rows, equal for equal ones."""
    sources = recorded.columns.column("source")[rows]
    codes = np.full(len(rows), hash(b"{}"), np.int64)
    for block, part in recorded.columns.arguments.parts(sources):
        codes[part] = [hash(text) for text in block.find_all(sources[part])]
    return codes


def _groups(recorded: RecordedEvents, rows: Rows, *further: Ids) -> _Groups:
    """Events that are equal in the columns that tell most, and in further ones of all events."""
    columns = [recorded.phase, recorded.track, recorded.name.codes, *further]
    keys = [*(column[rows] for column in columns), _durations(recorded, rows), recorded.time_ns[rows]]
    order = np.lexsort(keys)
    begins = np.zeros(len(rows), np.bool_)
    for key in keys:
        begins |= begins_run(key[order])
    group = np.cumsum(begins) - 1
    starts = np.flatnonzero(begins)
    size = np.diff(np.append(starts, len(rows)))
    return _Groups(rows[order], group, size[group], np.arange(len(rows)) - starts[group])


def _nearly_all(kind: Codes, repeated: Mask, timed: Mask) -> Mask:
    """Events of kinds of which nearly all are repeated."""
    kinds = int(kind.max(initial=0)) + 1
    count = np.bincount(kind[timed], minlength=kinds)
    twins = np.bincount(kind[timed & repeated], minlength=kinds)
    return np.logical_and(twins >= _LEAST, twins >= _NEARLY_ALL * count)[kind]
