"""What a question about one operation is about: an operation of a level, or one raw event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.serve.levels import event_of, place_of
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline import Operation
from stepscope.timeline.measure import Costs
from stepscope.timeline.step_id import StepId

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Subject:
    """What is told about: an operation of a level, or a raw event that was opened in place.

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


def subject_of(opened: OpenTrace, query: Query) -> Subject:
    """What `path` or `event` of a question names.

    Raises:
        TraceError: if no operation has this path.
        ServeError: if there is no such event.
    """
    timeline = opened.timeline
    if query.number("event") is None:
        path = "/".join(filter(None, query.text("path").split("/")))
        level, number = timeline.find(path)
        operation, costs = level.operations[number], level.costs.take(np.array([number]))
        partners = int(level.forward[number]), int(level.backward[number])
        return Subject(path, operation, costs, timeline.raw_events(path), *partners)
    event = event_of(opened, query)
    path = place_of(opened, event)["path"]
    if path:
        level, number = timeline.find(path)
        if level.operations[number].event == event:
            return subject_of(opened, Query({"path": path}))
    operation, costs, raw = timeline.as_operation(event)
    rows = np.array([event])
    partners = int(timeline.index.forward_of(rows)[0]), int(timeline.index.backward_of(rows)[0])
    return Subject(path, operation, costs, raw, *partners)


def step_of(opened: OpenTrace, subject: Subject) -> dict[str, int | None]:
    """Step and rank: by the path, as a stage may hold no event, else by the event itself."""
    if subject.path:
        return StepId.of(subject.path)._asdict()
    rank_of = opened.timeline.index.rank
    return {"step": None, "rank": int(rank_of[subject.operation.rows[0]])}


def module_of(opened: OpenTrace, operation: Operation) -> int:
    """The module that an operation is a call of, or belongs to; -1 for none."""
    if operation.module >= 0 or operation.event < 0:
        return operation.module
    return int(opened.trace.events["module"][operation.event])


def known(column: NDArray[np.integer], row: int | None) -> int | None:
    """The value in a row of a nullable column, None where it is null or there is no row."""
    value = -1 if row is None else int(column[row])
    return value if value >= 0 else None
