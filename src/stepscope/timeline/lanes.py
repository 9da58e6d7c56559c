"""What lies directly in an operation: a lane of smaller operations on each thread or stream.

Events next to each other that work for the same module, seen from the operation that is opened,
are one call of it. A call that is an event itself (a recorded range or frame) stays one; backward
work and matched models have no such events, and their calls are the unbroken runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.annotate.blocks import numbered_blocks
from stepscope.timeline.calls import ModuleTree
from stepscope.timeline.index import Ids, Index, Mask, ranges
from stepscope.timeline.names import short_name
from stepscope.timeline.sections import TINY
from stepscope.trace.trace import Trace


@dataclass(frozen=True)
class Lane:
    """Operations side by side on one track.

    Attributes:
        track: of the CPU thread or, for work that the opened call itself launched, the stream.
        context: the module that they lie in, -1 for none.
        rows: event ids, none inside another, shape (rows,).
        bounds: operation i holds `rows[bounds[i]:bounds[i + 1]]`, shape (operations + 1,).
        module: the module that each operation is a call of, -1 for others, shape (operations,).
        through: names of the operations around these that were opened on the way.
        passed: how many of these are raw events.
    """

    track: int
    context: int
    rows: Ids
    bounds: Ids
    module: Ids
    through: tuple[str, ...] = field(default=())
    passed: int = 0

    def __len__(self) -> int:
        return len(self.module)

    def part(self, first: int, end: int) -> Lane:
        """The operations from `first` to before `end`."""
        bounds = self.bounds[first : end + 1]
        rows = self.rows[bounds[0] : bounds[-1]]
        return Lane(self.track, self.context, rows, bounds - bounds[0], self.module[first:end])


class Contents:
    """Finds the lanes inside events and calls.

    Args:
        trace: an annotated trace.

    Attributes:
        trace: as given.
        index: of its events.
        modules: the tree of modules that are called.
        blocks: code of each module's block, see `numbered_blocks`; the last is that of module -1.
        recompute: 1 for forward work repeated in backward, int64, shape (events,).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.index = trace, Index(trace)
        self.modules = ModuleTree(trace["modules"])
        self.blocks: Ids = np.append(numbered_blocks(trace["modules"]), -1)
        self._module: Ids = trace.events["module"].astype(np.int64)
        self.recompute: Ids = trace.events["recompute"].astype(np.int64)
        self._names = trace.events.text("name")
        calls = self.index.is_call[self.index.order]
        self._calls_before = np.concatenate([[0], np.cumsum(calls)])
        self._surrounds = trace.events.text("category").mask("python", "annotation")

    def lanes(self, rows: Ids, context: int, operators: bool) -> list[Lane]:
        """The lanes of some events, without what only surrounds others and says nothing of its own.

        Frames around calls of modules give way to these, and an operation that fills its lane,
        beside tiny ones without device work, gives way to what is inside it.

        Args:
            rows: event ids, none inside another, in pre-order, shape (rows,).
            context: the module that they lie in, -1 for none.
            operators: open operators too, not only frames, annotations and calls of modules.
        """
        tracks = self.index.track[rows]
        cuts = np.flatnonzero(np.diff(tracks)) + 1
        lanes = [self._lane(part, context) for part in np.split(rows, cuts) if len(part)]
        return [self._opened(lane, operators) for lane in lanes]

    def inside(self, event: int) -> Ids:
        """What is directly inside an event: its children, and the device work it launched."""
        return np.concatenate([self.index.children(event), self.index.launched_by(event)])

    def _lane(self, rows: Ids, context: int) -> Lane:
        module = self.modules.seen_from(context)[self._module[rows]]
        module[self.index.on_device[rows]] = -1
        called = self.index.is_call[rows] & (module >= 0)
        module[called] = self._module[rows[called]]
        alone = (module < 0) | called
        again = self.recompute[rows]
        goes_on = (module[1:] == module[:-1]) & (again[1:] == again[:-1])
        goes_on &= ~alone[1:] & ~alone[:-1]
        starts = np.flatnonzero(np.append(True, ~goes_on))
        track = int(self.index.track[rows[0]])
        return Lane(track, context, rows, np.append(starts, len(rows)), module[starts])

    def _opened(self, lane: Lane, operators: bool) -> Lane:
        """Opens what says nothing of its own: frames around calls, and what fills the lane."""
        lane = self._without_frames(lane)
        while (filler := self._filler(lane, operators)) is not None:
            lane = self._without_frames(self._with_inside(lane, filler))
        return self._without_trifles(lane)

    def _without_frames(self, lane: Lane) -> Lane:
        """Frames and annotations around calls of modules, replaced by what is inside them."""
        while (around := self._frames_around_calls(lane.rows)).any():
            frames = lane.rows[around]
            inner = [self.index.children(frame) for frame in frames.tolist()]
            rows = self.index.in_order(np.concatenate([lane.rows[~around], *inner]))
            names = tuple(short_name(self._names[frame] or "") for frame in frames.tolist())
            lane = self._continued(lane, self._lane(rows, lane.context), names, len(frames))
        return lane

    def _frames_around_calls(self, rows: Ids) -> Mask:
        first, end = self.index.inside(rows)
        calls = self._calls_before[end] - self._calls_before[first]
        plain = ~self.index.is_call[rows] & ~self.index.launches_itself[rows]
        around: Mask = self._surrounds[rows] & plain & (calls > 0)
        return around

    def _without_trifles(self, lane: Lane) -> Lane:
        """Frames in which nothing works (`__getattr__`) left out, if all of them are tiny."""
        first, end = self.index.inside(lane.rows)
        works = self.index.work_before[end] - self.index.work_before[first]
        trifle = self._surrounds[lane.rows] & ~self.index.is_call[lane.rows] & (works == 0)
        time = self.index.duration[lane.rows]
        if trifle.all() or not trifle.any() or time[trifle].sum() > TINY * time.sum():
            return lane
        inner = self._lane(lane.rows[~trifle], lane.context)
        return self._continued(lane, inner, (), int((end - first)[trifle].sum()))

    def _filler(self, lane: Lane, operators: bool) -> int | None:
        """The operation that takes all but a tiny share of its lane's time, if it can be opened."""
        if self.index.on_device[lane.rows].any():
            return None
        time = np.add.reduceat(self.index.duration[lane.rows], lane.bounds[:-1])
        number = int(time.argmax())
        others = np.delete(np.arange(len(lane)), number)
        small = time[others].sum() <= TINY * time.sum()
        if not small or (lane.module[others] >= 0).any() or self._launch_work(lane, others):
            return None
        return number if self._opens(lane, number, operators) else None

    def _launch_work(self, lane: Lane, operations: Ids) -> bool:
        _, position = ranges(lane.bounds[operations], lane.bounds[operations + 1])
        first, end = self.index.launches_inside(lane.rows[position])
        return bool((end > first).any())

    def _opens(self, lane: Lane, number: int, operators: bool) -> bool:
        event = self.event(lane, number)
        if event < 0:
            return True
        allowed = operators or self._surrounds[event] or self.index.is_call[event]
        inside = self.index.has_children(event) and not self.index.launches_itself[event]
        return bool(allowed and inside)

    def _with_inside(self, lane: Lane, number: int) -> Lane:
        """A lane with one operation replaced by what is directly inside it."""
        event, context = self.event(lane, number), self.context_in(lane, number)
        names = (self.name(lane, number),)
        if event < 0:
            return self._continued(lane, self._lane(lane.rows, context), names, 0)
        rows = np.concatenate([lane.rows[lane.rows != event], self.index.children(event)])
        inner = self._lane(self.index.in_order(rows), context)
        return self._continued(lane, inner, names, 1)

    def _continued(self, lane: Lane, inner: Lane, names: tuple[str, ...], events: int) -> Lane:
        through = tuple(dict.fromkeys((*lane.through, *names)))
        return replace(inner, through=through, passed=lane.passed + events)

    def event(self, lane: Lane, operation: int) -> int:
        """The event that is an operation, -1 for a call that is a run of events."""
        first = int(lane.rows[lane.bounds[operation]])
        single = lane.bounds[operation + 1] - lane.bounds[operation] == 1
        is_event = lane.module[operation] < 0 or self.index.is_call[first]
        return first if single and is_event else -1

    def context_in(self, lane: Lane, operation: int) -> int:
        """The module that an operation's inside lies in."""
        first = int(lane.rows[lane.bounds[operation]])
        if self.index.is_call[first]:
            return int(self._module[first])
        module = int(lane.module[operation])
        return module if module >= 0 else lane.context

    def name(self, lane: Lane, operation: int) -> str:
        """An operation's short name."""
        module = int(lane.module[operation])
        if module >= 0:
            return self.modules.name_in(module, lane.context)
        return short_name(self._names[int(lane.rows[lane.bounds[operation]])] or "")

    def name_codes(self, lane: Lane) -> Ids:
        """A number for each operation that those of one name share, shape (operations,)."""
        own = self._names.codes[lane.rows[lane.bounds[:-1]]]
        return np.where(lane.module >= 0, -1 - lane.module, own)
