"""What a request about one operation names: an operation of a level, or one raw event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import IntArray, Rows
from stepscope.serve.request_parameters import Query
from stepscope.serve.timeline_answers import event_of, place_of
from stepscope.serve.trace_view import TraceView
from stepscope.timeline import Operation
from stepscope.timeline.operation_costs import Costs
from stepscope.timeline.step_id import StepId


@dataclass(frozen=True)
class Selection:
    """An operation of a level, or a raw event that was opened in place.

    Attributes:
        path: of the operation that it is or lies in.
        operation: itself.
        costs: of it alone.
        raw: its raw events.
        forward, backward: its partner events, -1 for none.
    """

    path: str
    operation: Operation
    costs: Costs
    raw: Rows
    forward: int
    backward: int

    @property
    def event(self) -> int | None:
        """The event that it is."""
        return self.operation.event if self.operation.event >= 0 else None


def selection_of(view: TraceView, query: Query) -> Selection:
    """What `path` or `event` of a request names.

    Raises:
        TraceError: if no operation has this path.
        ServeError: if there is no such event.
    """
    timeline = view.timeline
    if query.number("event") is None:
        path = "/".join(filter(None, query.text("path").split("/")))
        level, row = timeline.find(path)
        operation, costs = level.operations[row], level.costs.take(np.array([row]))
        partners = int(level.forward[row]), int(level.backward[row])
        return Selection(path, operation, costs, timeline.raw_events(path), *partners)
    event = event_of(view, query)
    path = place_of(view, event).path
    if path:
        level, row = timeline.find(path)
        if level.operations[row].event == event:
            return selection_of(view, Query({"path": path}))
    operation, costs, raw = timeline.as_operation(event)
    rows = np.array([event])
    partners = int(timeline.index.forward_of(rows)[0]), int(timeline.index.backward_of(rows)[0])
    return Selection(path, operation, costs, raw, *partners)


def step_of(view: TraceView, selection: Selection) -> tuple[int | None, int]:
    """Step and rank: by the path, since a stage may hold no event, else by the event itself."""
    if selection.path:
        step, rank = StepId.of(selection.path)
        return step, rank
    return None, int(view.timeline.index.rank[selection.operation.rows[0]])


def module_of(view: TraceView, operation: Operation) -> int:
    """The module that an operation is a call of, or belongs to; -1 for none."""
    if operation.module >= 0 or operation.event < 0:
        return operation.module
    return int(view.trace.events["module"][operation.event])


def known(column: IntArray, row: int | None) -> int | None:
    """The value in a row of a nullable column, None if it is null or there is no row."""
    value = -1 if row is None else int(column[row])
    return value if value >= 0 else None
