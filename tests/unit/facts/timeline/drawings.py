"""Short ways to say what a level of a drawn trace shows."""

from __future__ import annotations

from typing import Any

from stepscope.facts.annotate import annotate
from stepscope.facts.timeline import Level, Timeline
from stepscope.testing import drawn_trace

Row = tuple[str, str, float, float]


def drawn(text: str, model: dict[str, Any] | None = None, **options: Any) -> Timeline:
    """The timeline of a drawn trace."""
    return Timeline(annotate(drawn_trace(text, model=model or {})), **options)


def rows(level: Level) -> list[Row]:
    """Kind, name, CPU time and device time of each operation, in microseconds."""
    costs = level.costs
    return [
        (one.kind, one.name, costs.cpu_ns[number] / 1000, costs.device_ns[number] / 1000)
        for number, one in enumerate(level.operations)
    ]


def names(level: Level) -> list[str]:
    """The names of the operations."""
    return [one.name for one in level.operations]


def opened(timeline: Timeline, *wanted: str, every: bool = False) -> Level:
    """The level that one reaches by opening operations by their names, one after the other."""
    path = ""
    for name in wanted:
        level = timeline.level(path, every)
        (found,) = (one for one in level.operations if one.name == name)
        path = f"{path}/{found.id}"
    return timeline.level(path, every)
