"""A level as plain lists with a table of strings: what a page draws, and nothing else.

Times are nanoseconds since the level's start. The device side is told as it was recorded; a page
draws it `shift_ns` to the left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.timeline.index import Ids
from stepscope.timeline.level import Level
from stepscope.timeline.names import short_name
from stepscope.timeline.operation import Operation
from stepscope.trace.interner import Interner
from stepscope.trace.trace import Trace


def level_to_json(level: Level, trace: Trace) -> dict[str, Any]:
    """A level as a dict that `json` can write.

    Args:
        level: of the trace's timeline.
        trace: which names the device work.

    Returns:
        `operations` and `device` hold columns of one length each; `device` has a row for each
        operation and stream. -1 stands for nothing, and strings are numbers into `strings`.
    """
    strings: Interner[str] = Interner()
    return {
        "path": "/".join(level.path),
        "name": level.name,
        "through": list(level.through),
        "start_ns": level.start_ns,
        "length_ns": level.end_ns - level.start_ns,
        "shift_ns": level.shift_ns,
        "passed": level.passed,
        "hidden": level.hidden,
        "resources": [vars(one) for one in level.resources],
        "operations": _operations(level, strings),
        "device": _device(level, trace, strings),
        "strings": list(strings),
    }


def _operations(level: Level, strings: Interner[str]) -> dict[str, list[Any]]:
    operations, costs = level.operations, level.costs
    sides = ("device" if one else "cpu" for one in costs.bound_by_device)
    return {
        "id": [one.id for one in operations],
        "name": strings.codes(one.name for one in operations).tolist(),
        "kind": strings.codes(one.kind for one in operations).tolist(),
        "resource": [one.track for one in operations],
        "start_ns": _since(level, costs.start_ns),
        "end_ns": _since(level, costs.end_ns),
        "cpu_ns": costs.cpu_ns.tolist(),
        "self_ns": costs.self_ns.tolist(),
        "recompute_ns": costs.recompute_ns.tolist(),
        "device_ns": costs.device_ns.tolist(),
        "bound_by": strings.codes(sides).tolist(),
        "events": costs.events.tolist(),
        "opens": (costs.events > 1).astype(int).tolist(),
        "event": [one.event for one in operations],
        "module": [one.module for one in operations],
        "recompute": [int(one.recompute) for one in operations],
        "forward": level.forward.tolist(),
        "backward": level.backward.tolist(),
        "launch": level.launch.tolist(),
        **_spreads(operations),
    }


def _spreads(operations: list[Operation]) -> dict[str, list[Any]]:
    """How many operations each one stands for, and how these differ."""
    spreads = [one.spread for one in operations]
    return {
        "count": [one.count if one else 1 for one in spreads],
        "least_ns": [one.least_ns if one else -1 for one in spreads],
        "mean_ns": [one.mean_ns if one else -1 for one in spreads],
        "most_ns": [one.most_ns if one else -1 for one in spreads],
        "slowest": [one.slowest if one else "" for one in spreads],
    }


def _device(level: Level, trace: Trace, strings: Interner[str]) -> dict[str, list[Any]]:
    shown = [one.id for one in level.resources if one.shown and one.kind != "rank"]
    parts = level.costs.parts
    keep = np.flatnonzero(np.isin(parts.track, shown) | (not level.path))
    names = trace.events.text("name")
    return {
        "operation": parts.operation[keep].tolist(),
        "resource": parts.track[keep].tolist(),
        "name": strings.codes(
            short_name(names[event] or "") if event >= 0 else level.operations[operation].name
            for event, operation in zip(
                parts.event[keep].tolist(), parts.operation[keep].tolist(), strict=True
            )
        ).tolist(),
        "event": parts.event[keep].tolist(),
        "start_ns": _since(level, parts.start_ns[keep]),
        "end_ns": _since(level, parts.end_ns[keep]),
        "busy_ns": parts.busy_ns[keep].tolist(),
        "count": parts.count[keep].tolist(),
    }


def _since(level: Level, times: Ids) -> list[int]:
    """Times since the level's start; nothing stays -1, and what began earlier is cut at 0."""
    since: list[int] = np.where(times < 0, -1, np.maximum(times - level.start_ns, 0)).tolist()
    return since
