"""Traces of Paddle's profiler."""

from __future__ import annotations

import json
from typing import Any

from reading import read_text

from stepscope.facts.annotate import annotate


def written(name: str, category: str, begin: float, end: float, side: str) -> dict[str, Any]:
    """An event as Paddle writes it: with its duration in its name, on one side of a thread."""
    return {
        "name": f"{name}[{end - begin:.3f} us]",
        "cat": category,
        "ph": "X",
        "pid": 7,
        "tid": f"7({side})",
        "ts": begin,
        "dur": end - begin,
    }


STEP = [
    written("ProfileStep#3", "ProfileStep", 0, 100, "Python"),
    written("_DataLoaderIterSingleProcess", "Dataloader", 0, 30, "Python"),
    written("Linear", "Forward", 30, 50, "Python"),
    written("matmul dygraph", "Operator", 32, 48, "C++"),
    written("Gradient Backward", "Backward", 50, 80, "Python"),
    written("Global_MatmulGradNode", "Operator", 52, 78, "C++"),
    written("Optimization Step", "Optimization", 80, 100, "Python"),
    written("adam_ dygraph", "Operator", 82, 98, "C++"),
]


def test_names_lose_their_durations_and_the_two_sides_of_a_thread_are_one_track() -> None:
    trace = read_text(json.dumps({"schemaVersion": "1.0.2", "traceEvents": STEP}))
    assert trace.metadata.framework == "paddle"
    events = list(trace.events.rows())
    assert [(row["name"], row["category"]) for row in events[:4]] == [
        ("ProfileStep#3", "annotation"),
        ("_DataLoaderIterSingleProcess", "annotation"),
        ("Linear", "annotation"),
        ("matmul dygraph", "cpu_op"),
    ]
    assert len({row["track"] for row in events}) == 1
    assert events[3]["parent"] == events[2]["id"]


def test_its_steps_and_their_stages_are_known() -> None:
    trace = annotate(read_text(json.dumps({"schemaVersion": "1.0.2", "traceEvents": STEP})))
    assert [row["step"] for row in trace["steps"].rows()] == [3]
    runs = trace["stages"]
    assert [
        (stage, (end - start) // 1000)
        for stage, start, end in zip(
            runs.text("stage"), runs["start_ns"].tolist(), runs["end_ns"].tolist(), strict=True
        )
    ] == [("data_loading", 30), ("forward", 20), ("backward", 30), ("optimizer", 20)]


def test_other_traces_keep_their_names() -> None:
    event = {"name": "mm[2 ms]", "cat": "cpu_op", "ph": "X", "pid": 7, "tid": 7, "ts": 0, "dur": 1}
    assert list(read_text(json.dumps([event])).events.text("name")) == ["mm[2 ms]"]
