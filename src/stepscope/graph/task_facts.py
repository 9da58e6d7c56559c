"""Columns that tasks inherit from their events: name, category, kind, stage, module, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Array, Codes8, Ids
from stepscope.graph.graph_schema import TASKS
from stepscope.trace.columns import gathered
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Table, Text

_OTHER = CATEGORIES.index("other")


def task_table(events: Table, thread: Ids, columns: dict[str, Any]) -> Table:
    """Tasks with the facts of their events; marks are named by their step.

    Args:
        events: the trace's events.
        thread: thread of each task, sorted.
        columns: `event`, `mark`, `step` and the times.
    """
    event = columns["event"]
    facts: dict[str, Any] = {
        name: _of_event(events, name, event) for name in ("kind", "module", "bytes", "stage")
    }
    facts["stage"] = _fill_back(facts["stage"], thread)
    category = _of_event(events, "category", event)
    facts["category"] = np.where(category >= 0, category, _OTHER)
    for name in ("kind", "stage", "category"):
        facts[name] = Text(facts[name].astype(np.int8), TASKS.column(name).values)
    facts["name"] = _names(events.text("name"), event, columns["mark"], columns["step"])
    return Table(TASKS, {"thread": thread, **columns, **facts})


def _of_event(events: Table, name: str, event: Ids) -> Array:
    values = events[name]
    return gathered(np.append(values, values.dtype.type(-1)), event)


def _fill_back(stage: Array, thread: Ids) -> Array:
    """Give tasks without an event the stage of the thread's next task that has one."""
    known, missing = np.flatnonzero(stage >= 0), np.flatnonzero(stage < 0)
    following = np.append(known, -1)[np.searchsorted(known, missing)]
    same = (following >= 0) & (thread[following] == thread[missing])
    filled = stage.copy()
    filled[missing[same]] = stage[following[same]]
    return filled


def _names(names: Text, event: Ids, mark: Codes8, step: Ids) -> Text:
    """Names of events, `step 5` for marks, empty for handovers between threads."""
    numbers = np.unique(step[mark > 0])
    values = [*names.values, "", *(f"step {number}" for number in numbers)]
    own = len(names.values) + 1 + np.searchsorted(numbers, step)
    codes = gathered(np.append(names.codes, np.int32(len(names.values))), event)
    return Text(np.where(mark > 0, own, codes).astype(np.int32), values)
