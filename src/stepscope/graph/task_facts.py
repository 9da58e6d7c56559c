"""Columns that tasks inherit from their events: name, category, kind, stage, module, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.arrays import Array, Codes8, Ids
from stepscope.graph.graph_schema import TASKS
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
    return np.append(events[name], -1)[event]


def _fill_back(stage: Array, thread: Ids) -> Array:
    """Give tasks without an event the stage of the thread's next task that has one."""
    count = len(stage)
    known = np.where(stage >= 0, np.arange(count), count)
    following = np.minimum.accumulate(known[::-1])[::-1] if count else known
    safe = np.minimum(following, max(count - 1, 0))
    same = (following < count) & (thread[safe] == thread)
    return np.where(same, stage[safe], stage)


def _names(names: Text, event: Ids, mark: Codes8, step: Ids) -> Text:
    """Names of events, `step 5` for marks, empty for handovers between threads."""
    numbers = np.unique(step[mark > 0])
    values = [*names.values, "", *(f"step {number}" for number in numbers)]
    own = len(names.values) + 1 + np.searchsorted(numbers, step)
    codes = np.where(event >= 0, names.codes[event], len(names.values))
    return Text(np.where(mark > 0, own, codes).astype(np.int32), values)
