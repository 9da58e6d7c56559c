"""Look up the contents of an event without a search: events in depth-first order.

On each track events are in pre-order: an event, then all that is inside it, then what comes after.
So the inside of an event is one slice of that order, and the device work that it launched is one
slice of all device work put in the order of its launches. Both are lookups.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Codes8, Ids, Ids32, IntArray, Mask
from stepscope.facts.annotate.links.launches import device_work, launch_of
from stepscope.facts.annotate.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.trace.intervals import index_pairs
from stepscope.trace.row_order import grouped, inverse, places_among, stable_order
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace

_MOST_STEPS = 2**32  # numbers of steps are int32, so that rank and step fit one int64


class Index:
    """The order of an annotated trace's events, and slices of it; takes time once, linear in the events.

    Attributes:
        order: event ids in pre-order, track by track, int32, shape (events,).
        place: position of each event in that order, int32, shape (events,).
        last: position of the last event inside each event (its own if none), int32, (events,).
        launch: the event that launched each event, -1 where none, int32, (events,).
        launched: ids of launched device work in the order of their launches, int64.
        on_device: device work, also without a known launch, bool, (events,).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.events = trace, trace.events
        self.start: Ids = self.events["start_ns"]
        self.end: Ids = self.start + self.events["duration_ns"]
        self.duration: Ids = self.events["duration_ns"]
        self.track: Ids32 = self.events["track"]
        self.parent: Ids32 = self.events["parent"]
        # Ids and places of events are int32 here as in the tables: these arrays are half of a page's memory.
        self.order: Ids32 = stable_order(self.track).astype(np.int32)
        self.place: Ids32 = inverse(self.order).astype(np.int32)
        self.last = self._last_inside()
        self.launch: Ids32 = launch_of(trace)
        work = np.flatnonzero(self.launch >= 0)
        self.launched: Ids = work[np.argsort(self.place[self.launch[work]], kind="stable")]
        self._launches_before = self._before(self.place[self.launch[work]])
        self.rank: Ids32 = trace["tracks"]["rank"][self.track]
        self.on_device: Mask = device_work(trace) | (self.launch >= 0)
        self.launches_itself = mask_of(self.launch[work], len(self.launch))

    def _last_inside(self) -> Ids32:
        """Follow the chain of last children of each event to its end."""
        child = self.order[self.parent[self.order] >= 0]
        last = np.arange(len(self.order), dtype=np.int32)
        last[self.place[self.parent[child]]] = self.place[child]
        while True:
            further = last[last]
            if np.array_equal(further, last):
                return last[self.place]
            last = further

    def _before(self, places: IntArray) -> Ids32:
        """How many of some places come before each place in `order`, shape (events + 1,)."""
        return np.cumsum(np.append(0, np.bincount(places, minlength=len(self.order))), dtype=np.int32)

    @cached_property
    def _children(self) -> tuple[IntArray, Ids]:
        """Events that lie in another, by that and in pre-order, and where each one's begin."""
        inner = self.order[self.parent[self.order] >= 0]
        order, first = grouped(self.parent[inner], len(self.order))
        return inner[order], first

    def children(self, events: Ids) -> tuple[Ids, Ids]:
        """The events directly inside each of `events`: index into these, and ids, in order."""
        children, first = self._children
        of, position = index_pairs(first[events], first[events + 1])
        return of, children[position].astype(np.int64)

    def has_children(self, events: Ids) -> Mask:
        """Whether anything is inside each of `events` on its track."""
        return self.last[events] > self.place[events]

    def launched_by(self, events: Ids) -> tuple[Ids, Ids]:
        """The device work that each call itself started: index into `events`, and ids."""
        at = self.place[events]
        of, position = index_pairs(*(self._launches_before[one].astype(np.int64) for one in (at, at + 1)))
        return of, self.launched[position]

    def inside(self, rows: Ids) -> tuple[Ids, Ids]:
        """Where in `order` each of `rows` and its inside begin and end, shapes (rows,)."""
        return self.place[rows].astype(np.int64), self.last[rows].astype(np.int64) + 1

    def launches_inside(self, rows: Ids) -> tuple[Ids, Ids]:
        """Where in `launched` the device work of each of `rows` begins and ends, shapes (rows,)."""
        first, end = (self._launches_before[at].astype(np.int64) for at in self.inside(rows))
        return first, end

    def device_work(self, rows: Ids) -> tuple[Ids, Ids]:
        """The device work launched inside each of `rows`; device work counts as itself.

        An index into `rows` and an id for each piece of work, shapes (works,).
        """
        first, end = self.launches_inside(rows)
        own = np.flatnonzero(self.on_device[rows])
        end[own] = first[own]
        of_row, position = index_pairs(first, end)
        return np.concatenate([of_row, own]), np.concatenate([self.launched[position], rows[own]])

    @cached_property
    def work_before(self) -> Ids:
        """CPU time of operators and calls before each place in `order`, ns, (events + 1,).

        Frames and annotations are not work: a thread that waits for another is inside them, or in
        an event that is nothing else.
        """
        return self._time_before(~self.surrounds & ~self.events.text("category").mask("sync"))

    @cached_property
    def again_before(self) -> Ids:
        """CPU time of forward work repeated in backward, before each place, ns, (events + 1,)."""
        return self._time_before(self.events["recompute"] == 1)

    def _time_before(self, chosen: Mask) -> Ids:
        time = np.where(chosen & ~self.on_device, self.events["self_ns"], 0)[self.order]
        return np.concatenate([[0], np.cumsum(time)])

    @cached_property
    def is_call(self) -> Mask:
        """Events that are themselves calls of modules, bool, shape (events,)."""
        names = self.events.text("name")
        marked = names.where(lambda name: name.startswith((MODULE_RANGE, MODULE_FRAME)))
        return marked & (self.events["module"] >= 0)

    @cached_property
    def calls_before(self) -> Ids32:
        """Calls of modules before each place in `order`, shape (events + 1,)."""
        return np.cumsum(np.append(False, self.is_call[self.order]), dtype=np.int32)

    @cached_property
    def is_frame(self) -> Mask:
        """Python frames, bool, shape (events,)."""
        return self.events.text("category").mask("python")

    @cached_property
    def surrounds(self) -> Mask:
        """Frames and annotations, which do nothing themselves, bool, shape (events,)."""
        return self.is_frame | self.events.text("category").mask("annotation")

    @cached_property
    def _backward(self) -> tuple[Ids, Ids32]:
        """Backward events by the place of their forward events; and how many come before each."""
        rows = np.flatnonzero(self.events["forward_event"] >= 0)
        places = self.place[self.events["forward_event"][rows]]
        return rows[np.argsort(places, kind="stable")], self._before(places)

    def backward_of(self, rows: Ids) -> Ids:
        """The first backward event of anything inside each of `rows`, or -1, shape (rows,)."""
        backward, before = self._backward
        first, end = (before[at] for at in self.inside(rows))
        return values_at(backward, np.where(end > first, first, -1))

    @cached_property
    def _forward(self) -> tuple[Ids, Ids32]:
        """Where in `order` events have a forward event; and how many come before each place."""
        places = np.flatnonzero(self.events["forward_event"][self.order] >= 0)
        return places, self._before(places)

    def forward_of(self, rows: Ids) -> Ids:
        """The forward event of the first backward one inside each of `rows`, or -1, (rows,)."""
        places, before = self._forward
        first, end = (before[at] for at in self.inside(rows))
        place = values_at(places, np.where(end > first, first, -1))
        return values_at(self.events["forward_event"], values_at(self.order, place))

    @cached_property
    def _by_step(self) -> tuple[Ids, IntArray, Ids]:
        """The keys of steps, ascending; events by step; and where those of each begin."""
        steps = self.trace["steps"]
        keys = np.unique(step_keys(steps["rank"], steps["step"]))
        found = places_among(keys, step_keys(self.rank, self.events["step"]))
        rows, first = grouped(np.where(found >= 0, found, len(keys)), len(keys) + 1)
        return keys, rows, first

    def of_step(self, step: int, rank: int) -> Ids:
        """The events of a step of a rank, ascending."""
        keys, rows, first = self._by_step
        (at,) = places_among(keys, step_keys(np.array([rank]), np.array([step]))).tolist()
        return (rows[first[at] : first[at + 1]] if at >= 0 else rows[:0]).astype(np.int64)

    def outermost(self, rows: Ids) -> Ids:
        """Those of some events that do not lie directly in one of them, in pre-order."""
        mask = mask_of(rows, len(self.order))
        above = self.parent[rows]
        return self.in_order(rows[(above < 0) | ~mask[above]])

    def in_order(self, rows: Ids | Sequence[int]) -> Ids:
        """Events in pre-order, track by track."""
        rows = np.asarray(rows, np.int64)
        return rows[np.argsort(self.place[rows], kind="stable")]


def step_keys(rank: IntArray, step: IntArray) -> Ids:
    """A number for each pair of rank and step, in their order; steps have any number of a file."""
    return rank.astype(np.int64) * _MOST_STEPS + step


def values_at(column: Ids | Ids32 | Codes8, rows: Ids) -> Ids:
    """The values of some rows of a column; -1 where the row is -1.

    It takes as long as there are `rows`, however long the column.

    Example:
        >>> values_at(np.array([7, 9]), np.array([1, -1, 0])).tolist()
        [9, -1, 7]
    """
    found = np.full(len(rows), -1, np.int64)
    known = rows >= 0
    found[known] = column[rows[known]]
    return found
