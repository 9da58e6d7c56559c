"""A level of the timeline with thousands of bars, which the timeline itself folds and never lists.

It takes the place of one answer, so that `view.py` can measure drawing alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.trace.trace import Trace


def flat_level(trace: Trace, count: int) -> dict[str, Any]:
    """A level of `count` bars, half operators and half kernels, as recorded in one step."""
    events, launches = trace.events, trace["launches"]
    calls = events["parent"][launches["cpu_event"]]
    step = events["step"][launches["cpu_event"]]
    keep = np.flatnonzero((calls >= 0) & (step == np.bincount(step[step >= 0]).argmax()))
    if len(keep) < count // 2:
        raise ValueError(f"expected {count // 2} launches in one step, found {len(keep)}")
    keep = keep[: count // 2]
    cpu, device = calls[keep], launches["device_event"][keep]
    start, length = events["start_ns"], events["duration_ns"]
    begin = int(start[cpu].min())
    ends = [int((start[rows] + length[rows]).max()) - begin for rows in (cpu, device)]
    names = events.text("name")
    texts = sorted({names[row] or "" for row in (*cpu.tolist(), *device.tolist())})
    code = {text: number for number, text in enumerate(texts)}
    columns = {"cpu": cpu, "device": device}
    spans = {
        side: {
            "start_ns": (start[rows] - begin).tolist(),
            "end_ns": (start[rows] + length[rows] - begin).tolist(),
            "ns": length[rows].tolist(),
            "name": [code[names[row] or ""] for row in rows.tolist()],
            "resource": events["track"][rows].tolist(),
        }
        for side, rows in columns.items()
    }
    return _wire(spans, max(ends), len(keep), trace, texts)


def _wire(
    spans: dict[str, dict[str, list[Any]]], length: int, size: int, trace: Trace, texts: list[str]
) -> dict[str, Any]:
    cpu, device = spans["cpu"], spans["device"]
    none, once = [-1] * size, [1] * size
    tracks = trace["tracks"]
    shown = [
        {
            "id": one,
            "kind": "cpu" if one in cpu["resource"] else "device",
            "rank": 0,
            "name": tracks.text("name")[one],
            "busy_ns": 0,
            "shown": True,
        }
        for one in sorted({*cpu["resource"], *device["resource"]})
    ]
    operations = {
        "id": [f"e{i}" for i in range(size)],
        "name": cpu["name"],
        "stage": none,
        "kind": [len(texts)] * size,
        "resource": cpu["resource"],
        "start_ns": cpu["start_ns"],
        "end_ns": cpu["end_ns"],
        "cpu_ns": cpu["ns"],
        "self_ns": cpu["ns"],
        "recompute_ns": [0] * size,
        "device_ns": device["ns"],
        "bound_by": [len(texts) + 1] * size,
        "events": once,
        "event": none,
        "module": none,
        "forward": none,
        "backward": none,
        "launch": none,
        "count": once,
        "least_ns": none,
        "mean_ns": none,
        "most_ns": none,
        "slowest": [""] * size,
        "opens": [0] * size,
    }
    parts = {
        "operation": list(range(size)),
        "resource": device["resource"],
        "name": device["name"],
        "start_ns": device["start_ns"],
        "end_ns": device["end_ns"],
        "busy_ns": device["ns"],
    }
    return {
        "name": f"{2 * size} bars",
        "through": [],
        "start_ns": 0,
        "length_ns": length,
        "shift_ns": 0,
        "passed": 0,
        "hidden": 0,
        "resources": shown,
        "operations": operations,
        "device": parts,
        "strings": [*texts, "event", "device"],
    }
