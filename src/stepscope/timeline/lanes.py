"""The contents of operations: lanes of smaller operations on each thread or stream.

Events next to each other that work for the same module, seen from the operation that is opened,
are one call of it. A call that is an event itself (a recorded range or frame) stays one; backward
work, matched models and compiled operations have no such events, and their calls are the unbroken
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.annotate.modules.costs import numbered_blocks
from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index
from stepscope.timeline.level_calls import ModuleTree
from stepscope.timeline.operation_labels import short_name
from stepscope.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Lanes:
    """Operations side by side on tracks: the lanes of several levels, one after the other.

    Attributes:
        context: the module that each lane lies in, -1 for none, shape (lanes,).
        rows: event ids in pre-order, lane by lane, none inside another, shape (rows,).
        lane_of_row: the lane of each, ascending, shape (rows,).
        bounds: operation i holds `rows[bounds[i]:bounds[i + 1]]`, shape (operations + 1,).
        module: the module that each operation is a call of, -1 for others, shape (operations,).
    """

    context: Ids
    rows: Ids
    lane_of_row: Ids
    bounds: Ids
    module: Ids

    def __len__(self) -> int:
        return len(self.context)

    @cached_property
    def first_row(self) -> Ids:
        """The first event of each operation, shape (operations,)."""
        return self.rows[self.bounds[:-1]]

    @cached_property
    def lane(self) -> Ids:
        """The lane of each operation, ascending, shape (operations,)."""
        return self.lane_of_row[self.bounds[:-1]]

    @cached_property
    def first(self) -> Ids:
        """Lane i holds the operations from `first[i]` to before `first[i + 1]`, (lanes + 1,)."""
        return np.searchsorted(self.lane, np.arange(len(self) + 1))


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

    def lanes(self, rows: Ids, lane: Ids, context: Ids) -> Lanes:
        """Events as calls and single events.

        Args:
            rows: event ids in pre-order, lane by lane, none inside another.
            lane: the lane of each, ascending; at least one event is in each.
            context: of each lane.
        """
        module = self.modules.seen_from(context[lane], self._module[rows])
        module[self.index.on_device[rows] & (self.index.events["scope"][rows] < 0)] = -1
        called = self.index.is_call[rows] & (module >= 0)
        module[called] = self._module[rows[called]]
        alone = (module < 0) | called
        again = self.recompute[rows]
        goes_on = ~alone[1:] & ~alone[:-1]
        for column in (lane, module, again):
            goes_on &= column[1:] == column[:-1]
        starts = np.flatnonzero(np.append(np.ones(min(len(rows), 1), np.bool_), ~goes_on))
        return Lanes(context, rows, lane, np.append(starts, len(rows)), module[starts])

    def events(self, lanes: Lanes) -> Ids:
        """The event that each operation is, -1 for a call that is a run of events."""
        is_event = (lanes.module < 0) | self.index.is_call[lanes.first_row]
        return np.where((np.diff(lanes.bounds) == 1) & is_event, lanes.first_row, -1)

    def contexts_in(self, lanes: Lanes) -> Ids:
        """The module that each operation's inside lies in."""
        seen = np.where(lanes.module >= 0, lanes.module, lanes.context[lanes.lane])
        return np.where(self.index.is_call[lanes.first_row], self._module[lanes.first_row], seen)

    def names(self, lanes: Lanes) -> tuple[list[str], Ids]:
        """Short names: the distinct ones, and the number of each operation's, (operations,)."""
        context, modules = lanes.context[lanes.lane], len(self.blocks)
        key = np.where(
            lanes.module >= 0,
            -1 - lanes.module - modules * (context + 1),
            self._names.codes[lanes.first_row],
        )
        _, where, which = np.unique(key, return_index=True, return_inverse=True)
        strings: dict[str, int] = {}
        code = [strings.setdefault(self.name(lanes, one), len(strings)) for one in where.tolist()]
        return list(strings), np.array(code, np.int64)[which]

    def name(self, lanes: Lanes, operation: int) -> str:
        """An operation's short name."""
        module = int(lanes.module[operation])
        if module >= 0:
            return self.modules.name_in(module, int(lanes.context[lanes.lane[operation]]))
        return self.event_name(int(lanes.first_row[operation]))

    def event_name(self, event: int) -> str:
        """An event's short name."""
        return short_name(self._names[event] or "")

    def name_codes(self, lanes: Lanes) -> Ids:
        """A number for each operation that those of one name share, shape (operations,)."""
        own = self._names.codes[lanes.first_row]
        return np.where(lanes.module >= 0, -1 - lanes.module, own)
