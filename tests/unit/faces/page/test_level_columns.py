"""A level as columns."""

from __future__ import annotations

from typing import Any

import msgspec
from serving import opened

from stepscope.faces.page.level_columns import wire_level
from stepscope.faces.page.trace_view import TraceView

STEP = """
    main     |   0 100 | ProfilerStep#1
    main     |  10  60 | ## forward ##
    main     |  20  40 | aten::mm
    main     |  22  24 | cudaLaunchKernel | corr=1
    main     |  40  59 | aten::add
    stream 7 |  50  90 | sgemm            | corr=1
"""


def columns(view: TraceView, path: str, every: bool = False) -> dict[str, Any]:
    level = wire_level(view.timeline.level(path, every), view)
    found: dict[str, Any] = msgspec.to_builtins(level)
    return found


def test_a_level_as_plain_columns() -> None:
    assert columns(opened(STEP), "s1.0/t1") == {
        "path": "s1.0/t1",
        "name": "forward",
        "through": ["forward"],
        "start_ns": 10_000,
        "length_ns": 50_000,
        "shift_ns": 30_000,
        "passed": 1,
        "hidden": 0,
        "resources": [
            {
                "id": 0,
                "kind": "cpu",
                "name": "main",
                "device": None,
                "rank": 0,
                "busy_ns": 39_000,
                "shown": True,
            },
            {
                "id": 1,
                "kind": "device",
                "name": "stream 7",
                "device": 0,
                "rank": 0,
                "busy_ns": 40_000,
                "shown": True,
            },
        ],
        "operations": {
            "id": ["e2", "e4"],
            "name": [0, 1],
            "stage": [2, 2],
            "kind": [2, 2],
            "resource": [0, 0],
            "start_ns": [10_000, 30_000],
            "end_ns": [30_000, 49_000],
            "cpu_ns": [20_000, 19_000],
            "self_ns": [18_000, 19_000],
            "recompute_ns": [0, 0],
            "device_ns": [40_000, 0],
            "bound_by": [3, 4],
            "events": [3, 1],
            "opens": [1, 0],
            "event": [2, 4],
            "module": [-1, -1],
            "forward": [-1, -1],
            "backward": [-1, -1],
            "launch": [-1, -1],
            "count": [1, 1],
            "least_ns": [-1, -1],
            "mean_ns": [-1, -1],
            "most_ns": [-1, -1],
            "slowest": ["", ""],
        },
        "device": {
            "operation": [0],
            "resource": [1],
            "name": [5],
            "start_ns": [40_000],
            "end_ns": [80_000],
            "busy_ns": [40_000],
        },
        "strings": ["aten::mm", "aten::add", "event", "device", "cpu", "sgemm"],
    }


def test_hidden_streams_are_left_out() -> None:
    view = opened(f"""
        {STEP}
        main     | 41 42 | cudaLaunchKernel | corr=2
        stream 9 | 60 61 | add_kernel       | corr=2
    """)
    assert columns(view, "s1.0/t1")["device"]["resource"] == [1]
    assert columns(view, "s1.0/t1", every=True)["device"]["resource"] == [1, 2]
