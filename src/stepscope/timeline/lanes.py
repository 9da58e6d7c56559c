"""The contents of an operation: a lane of smaller operations on each thread or stream.

Events next to each other that work for the same module, seen from the operation that is opened,
are one call of it. A call that is an event itself (a recorded range or frame) stays one; backward
work, matched models and compiled operations have no such events, and their calls are the unbroken
runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.annotate.modules.repeated_blocks import numbered_blocks
from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index
from stepscope.timeline.level_calls import ModuleTree
from stepscope.timeline.operation_labels import short_name
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
    through: tuple[str, ...] = ()
    passed: int = 0

    def __len__(self) -> int:
        return len(self.module)

    def part(self, first: int, end: int) -> Lane:
        """The operations from `first` to before `end`."""
        bounds = self.bounds[first : end + 1]
        rows = self.rows[bounds[0] : bounds[-1]]
        return Lane(self.track, self.context, rows, bounds - bounds[0], self.module[first:end])


class Contents:
    """Puts events together into calls, and names them.

    Args:
        trace: an annotated trace.

    Attributes:
        trace: as given.
        index: of its events.
        modules: the tree of modules that are called.
        blocks: code of each module's block, see `numbered_blocks`; the last belongs to module -1.
        recompute: 1 for forward work repeated in backward, int64, shape (events,).
    """

    def __init__(self, trace: Trace) -> None:
        self.trace, self.index = trace, Index(trace)
        self.modules = ModuleTree(trace["modules"])
        self.blocks: Ids = np.append(numbered_blocks(trace["modules"]), -1)
        self._module: Ids = trace.events["module"].astype(np.int64)
        self.recompute: Ids = trace.events["recompute"].astype(np.int64)
        self._names = trace.events.text("name")

    def inside(self, event: int) -> Ids:
        """What is directly inside an event: its children, and the device work it launched."""
        return np.concatenate([self.index.children(event), self.index.launched_by(event)])

    def lane(self, rows: Ids, context: int) -> Lane:
        """Events of one track in pre-order, none inside another, as calls and single events."""
        module = self.modules.seen_from(context)[self._module[rows]]
        module[self.index.on_device[rows] & (self.index.events["scope"][rows] < 0)] = -1
        called = self.index.is_call[rows] & (module >= 0)
        module[called] = self._module[rows[called]]
        alone = (module < 0) | called
        again = self.recompute[rows]
        goes_on = (module[1:] == module[:-1]) & (again[1:] == again[:-1])
        goes_on &= ~alone[1:] & ~alone[:-1]
        starts = np.flatnonzero(np.append(True, ~goes_on))
        track = int(self.index.track[rows[0]])
        return Lane(track, context, rows, np.append(starts, len(rows)), module[starts])

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
        return self.event_name(int(lane.rows[lane.bounds[operation]]))

    def event_name(self, event: int) -> str:
        """An event's short name."""
        return short_name(self._names[event] or "")

    def name_codes(self, lane: Lane) -> Ids:
        """A number for each operation that those of one name share, shape (operations,)."""
        own = self._names.codes[lane.rows[lane.bounds[:-1]]]
        return np.where(lane.module >= 0, -1 - lane.module, own)
