"""The answer about an operation's like: how long all of them take, and which take longest."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.serve.opened import OpenTrace
from stepscope.serve.subject import Rows, Subject, known, step_of
from stepscope.summary.instances import alike, calls_of, runs_of, statistics

_MOST_ROWS, _MOST_SHAPES = 50, 100


def instances_of(opened: OpenTrace, subject: Subject) -> dict[str, Any] | None:
    """Statistics, shapes and the longest of all runs, calls or events like it; None for none."""
    operation, trace = subject.operation, opened.trace
    if operation.kind == "stage":
        rows = runs_of(trace, operation.name, step_of(opened, subject)["rank"] or 0)
        return _of_ranges(trace["stages"].take(rows), operation.name)
    if operation.kind == "step":
        mine = trace["steps"]["rank"] == step_of(opened, subject)["rank"]
        return _of_ranges(trace["steps"].take(mine), "steps")
    if operation.module >= 0:
        return opened.keep(("calls", operation.module), partial(_calls, opened, operation.module))
    if operation.event < 0:
        return None
    event, index = operation.event, opened.timeline.index
    name = trace.events.text("name")[event] or ""
    key = "instances", name, int(index.rank[event]), bool(index.on_device[event])
    return opened.keep(key, lambda: _of_events(opened, alike(trace, event), name))


def _calls(opened: OpenTrace, module: int) -> dict[str, Any] | None:
    """The recorded calls of a module, where there are any."""
    calls = calls_of(opened.trace, module)
    name = opened.timeline.contents.modules.name_in(module, -1)
    return _of_events(opened, calls, f"calls of {name}") if len(calls) else None


def _of_ranges(table: Any, name: str) -> dict[str, Any] | None:
    """Runs of a stage, or steps, on the side of the launch that takes longer."""
    if not len(table):
        return None
    device = "device_ns" if table.schema.name == "stages" else "device_busy_ns"
    on_cpu, on_device = table["end_ns"] - table["start_ns"], table[device]
    side = "device" if on_device.sum() >= on_cpu.sum() else "cpu"
    time = on_device if side == "device" else on_cpu
    order = np.argsort(-time, kind="stable")[:_MOST_ROWS].tolist()
    steps, start = table["step"], table["start_ns"]
    rows = [
        {"event": None, "step": int(steps[row]), "start_ns": int(start[row]),
         "duration_ns": int(time[row])}
        for row in order
    ]  # fmt: skip
    return {"of": name, "side": side, **asdict(statistics(time)), "shapes": [], "rows": rows}


def _of_events(opened: OpenTrace, rows: Rows, name: str) -> dict[str, Any]:
    events, index = opened.trace.events, opened.timeline.index
    time = events["duration_ns"][rows]
    longest = longest_of(rows, time, _MOST_SHAPES)
    return {
        "of": name,
        "side": "device" if index.on_device[rows[0]] else "cpu",
        **asdict(statistics(time)),
        "shapes": _shapes(opened, longest),
        "rows": [
            {
                "event": event,
                "step": known(events["step"], event),
                "start_ns": int(events["start_ns"][event]),
                "duration_ns": int(events["duration_ns"][event]),
            }
            for event in longest[:_MOST_ROWS].tolist()
        ],
    }


def longest_of(rows: Rows, time: NDArray[np.int64], most: int = _MOST_ROWS) -> Rows:
    """The rows that take most time, the longest first; of equals the first."""
    if len(rows) > 2 * most:
        least = np.partition(time, len(time) - most)[len(time) - most]
        rows, time = rows[time >= least], time[time >= least]
    return rows[np.argsort(-time, kind="stable")[:most]]


def _shapes(opened: OpenTrace, longest: Rows) -> list[dict[str, Any]]:
    """The input shapes of the longest instances, those that take most time first."""
    found: dict[str, list[int]] = {}
    for event in np.sort(longest).tolist():  # in the order of the file, which is read in blocks
        shapes = opened.trace.event_arguments(event).get("Input Dims")
        if shapes:
            time = int(opened.trace.events["duration_ns"][event])
            found.setdefault(json.dumps(shapes), []).append(time)
    by_time = sorted(found.items(), key=lambda pair: -sum(pair[1]))[:_MOST_ROWS]
    return [
        {"shapes": shapes, "count": len(times), "mean_ns": sum(times) // len(times)}
        for shapes, times in by_time
    ]
