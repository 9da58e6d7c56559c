"""The raw events of an operation, and for each of them the smallest operation that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.event_index import Index, ranges
from stepscope.timeline.level import Level
from stepscope.timeline.operation import Operation


class Levels(Protocol):
    """What opens operations: a timeline."""

    index: Index

    def level(self, path: str = "", every: bool = False) -> Level:
        """The level inside an operation."""

    def raw_events(self, path: str) -> Ids:
        """The raw events of an operation."""


@dataclass(frozen=True)
class Places:
    """Where each raw event of an operation is shown.

    Attributes:
        events: event ids, ascending, int64.
        paths: of operations, each once.
        place: number into `paths` of the smallest operation that holds each event, int64.
    """

    events: Ids
    paths: list[str]
    place: Ids


def events_of(index: Index, operation: Operation) -> Ids:
    """Ids of an operation's raw events, ascending: its own, those inside, and their device work."""
    rows = operation.rows
    if operation.kind == "step":
        return np.sort(rows)
    on_cpu = rows[~index.on_device[rows]]
    _, place = ranges(*index.inside(on_cpu))
    _, work = index.device_work(rows)
    # Rows hold different events, so none is there twice.
    return np.sort(np.concatenate([index.order[place], work]))


def place_events(levels: Levels, path: str) -> Places:
    """The smallest operation that holds each raw event of an operation.

    Args:
        levels: the timeline.
        path: of the operation.

    Raises:
        TraceError: if no operation has this path.
    """
    index, paths = levels.index, [path]
    events = levels.raw_events(path)
    of_event = np.full(len(index.order), -1, np.int64)
    of_event[events] = 0
    for inner, operation in below(levels, path):
        of_event[events_of(index, operation)] = len(paths)
        paths.append(inner)
    return Places(events, paths, of_event[events])


def below(levels: Levels, path: str, every: bool = True) -> Iterator[tuple[str, Operation]]:
    """Every operation below one, with its path, each before those inside it."""
    level = levels.level(path, every)
    for number, operation in enumerate(level.operations):
        inner = f"{path}/{operation.id}" if path else operation.id
        yield inner, operation
        if level.costs.events[number] > 1:
            yield from below(levels, inner, every)
