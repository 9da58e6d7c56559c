"""The collector in Python, which takes the native one's place where there is no compiler."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record.contexts.context_options import KINDS, ContextOptions, FlushPlan
from stepscope.record.contexts.python_collector import PythonCollector

torch = pytest.importorskip("torch")


@pytest.fixture
def collector() -> PythonCollector:
    return PythonCollector(ContextOptions(), "no compiler", torch)


def written(collector: PythonCollector) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(collector.content(True))
    return found


def paths(content: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """Kind and name of each context with a time, from its thread on."""
    nodes, strings = content["nodes"], content["strings"]

    def path(node: int) -> list[tuple[str, str]]:
        if node <= 0:
            return []
        own = KINDS[nodes["kind"][node]], strings[nodes["name"][node]]
        return [*path(nodes["parent"][node]), own]

    return [path(node) for node in content["metrics"]["cpu_ns"]["node"]]


def test_operators_stand_below_lines_and_modules(collector: PythonCollector) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    collector.start()
    for _ in range(3):
        model(torch.ones(1, 2))
    collector.stop()
    content = written(collector)
    (addmm,) = (path for path in paths(content) if path[-1] == ("operator", "aten::addmm"))
    assert addmm[0] == ("thread", "main")
    assert [name for kind, name in addmm if kind == "module"] == ["model", "0"]
    assert content["totals"]["operators"] == sum(content["metrics"]["cpu_ns"]["count"])
    assert content["notes"] == ["collected in Python: no compiler"]
    assert any("backward" in lack for lack in content["lacks"])


def test_waits_inside_another_count_once() -> None:
    collector = PythonCollector(ContextOptions(), "no compiler", None)
    outer, inner = collector.begin_whole("wait: float(x)"), collector.begin_whole("inner")
    collector.end(inner)
    collector.end(outer)
    collector.spend("compilation of f", "train.py", 3, {"trace": 5.0, "lower": 7.0}, True)
    content = written(collector)
    assert content["sources"] == ["python", "operator"]
    assert [path[-1][1] for path in paths(content)] == ["wait: float(x)", "trace", "lower"]
    assert content["metrics"]["cpu_ns"]["sum"][1:] == [5, 7]


def test_beyond_the_limit_the_parent_counts() -> None:
    collector = PythonCollector(ContextOptions(python=False, limit=3), "no compiler", None)
    for name in ("one", "two", "three"):
        collector.end(collector.begin_whole(name))
    content = written(collector)
    assert len(content["nodes"]["name"]) == 3
    assert content["dropped"]["contexts"] == 2
    assert content["totals"]["operators"] == 3


def test_an_operator_after_a_write_is_due_writes(tmp_path: Path) -> None:
    files: list[bytes] = []
    file = SimpleNamespace(write=lambda manifest, modules, members: files.append(members["contexts.json"]))
    collector = PythonCollector(ContextOptions(), "no compiler", None)
    plan: Any = FlushPlan(file, {}, True, first_s=0.0, interval_s=0.0)  # type: ignore[arg-type]
    collector.flush_regularly(plan)
    collector.end(collector.begin_whole("wait"))
    collector.stop_flushing()
    collector.end(collector.begin_whole("wait"))
    assert [json.loads(content)["complete"] for content in files] == [False]
