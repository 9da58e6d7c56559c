"""Moves events along a piecewise linear map of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.base.arrays import Times


def moved(events: list[dict[str, Any]], old: Times, new: Times) -> list[dict[str, Any]]:
    """The events with their starts and ends mapped from `old` to `new` edges, ns."""
    start = np.array([one["ts"] for one in events], np.float64)
    end = start + [one["dur"] for one in events]
    begins, ends = mapped(start, old, new), mapped(end, old, new)
    return [
        {**one, "ts": int(begin), "dur": int(max(end - begin, 1))}
        for one, begin, end in zip(events, begins, ends, strict=True)
    ]


def mapped(times: Any, old: Times, new: Times) -> Times:
    """Times on the map; beyond its edges they keep their distance."""
    inside = np.rint(np.interp(times, old, new)).astype(np.int64)
    beyond = np.maximum(times - old[-1], 0) + np.minimum(times - old[0], 0)
    result: Times = inside + np.rint(beyond).astype(np.int64)
    return result
