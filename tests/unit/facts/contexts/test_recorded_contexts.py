"""A tree that the recorder aggregated (docs/reference/contexts_format.md)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.context_tree import checked

from stepscope.errors import IngestError, TraceError
from stepscope.facts.contexts import ContextTree, build_contexts
from stepscope.facts.contexts.build_tree import with_contexts
from stepscope.read import read
from stepscope.read.recorded.contexts_json import with_recorded_contexts
from stepscope.trace.concat import concat, of_rank
from stepscope.trace.trace import Trace

STRINGS = [
    "",
    "main",
    "step",
    "train.py",
    "aten::linear",
    "aten::addmm",
    "MmBackward0",
    "sgemm",
    "Memset (Device)",
    "memset",
    "kernel",
    "(others)",
]
KINDS = ["root", "thread", "python", "operator", "kernel"]
FORM: dict[str, Any] = {
    "format": "stepscope contexts",
    "version": 1,
    "strings": STRINGS,
    "kinds": KINDS,
    "nodes": {
        # root, main, step, linear, addmm, its backward, sgemm, memset, others
        "parent": [-1, 0, 1, 2, 3, 4, 4, 4, 2],
        "kind": [0, 1, 2, 3, 3, 3, 4, 4, 3],
        "relation": [0, 0, 0, 0, 0, 1, 0, 0, 0],
        "name": [0, 1, 2, 4, 5, 6, 7, 8, 11],
        "file": [0, 0, 3, 0, 0, 0, 0, 0, 0],
        "line": [0, 0, 12, 0, 0, 0, 0, 0, 0],
        "class": [0, 0, 0, 0, 0, 0, 10, 9, 0],
    },
    "metrics": {
        "cpu_ns": {
            "unit": "ns",
            "nesting": "inclusive",
            "meaning": "time on the CPU thread",
            "node": [3, 4, 5, 8],
            "count": [2, 2, 2, 1],
            "sum": [100, 60, 30, 5],
            "min": [40, 28, 10, 5],
            "max": [60, 32, 20, 5],
            "squares": [5200, 1808, 500, 25],
        },
        "device_ns": {
            "unit": "ns",
            "nesting": "exclusive",
            "meaning": "execution on the device",
            "node": [6, 7],
            "count": [2, 1],
            "sum": [80, 3],
            "min": [30, 3],
            "max": [50, 3],
            "squares": [3400, 9],
        },
        "cycles": {
            "unit": "1",
            "nesting": "exclusive",
            "meaning": "CPU cycles",
            "node": [2],
            "count": [3],
            "sum": [7],
            "min": [1],
            "max": [4],
            "squares": [21],
        },
    },
    "dropped": {"contexts": 1, "samples": 0},
    "notes": ["no device: libcuda.so.1 is not there"],
    "elapsed_ns": 5,
}


def changed(**parts: Any) -> bytes:
    return json.dumps({**FORM, **parts}).encode()


def trace_of(form: bytes = changed()) -> Trace:
    return with_recorded_contexts(Trace({}), form)


def tree() -> ContextTree:
    return checked(build_contexts(trace_of()))


def test_nodes_are_as_recorded() -> None:
    rows = list(tree().nodes.rows())
    assert [(row["kind"], row["via"], row["name"]) for row in rows] == [
        ("root", "call", ""),
        ("thread", "call", "main"),
        ("python", "call", "step"),
        ("operator", "call", "aten::linear"),
        ("operator", "call", "aten::addmm"),
        ("operator", "backward", "MmBackward0"),
        ("kernel", "launch", "sgemm"),
        ("memset", "launch", "Memset (Device)"),
        ("others", "call", "(others)"),
    ]
    assert (rows[2]["file"], rows[2]["line"]) == ("train.py", 12)
    assert rows[3]["line"] is None


def test_cpu_time_is_split_into_call_and_self_time() -> None:
    found = tree()
    calls, own = found.own("call_ns"), found.own("cpu_ns")
    (linear,), (addmm,) = found.search("^aten::linear$"), found.search("^aten::addmm$")
    assert (calls.sum[linear], calls.min[linear], calls.max[linear]) == (100, 40, 60)
    assert calls.std[linear] == pytest.approx(10)
    assert (own.sum[linear], own.count[linear]) == (40, 2)
    assert own.sum[addmm] == 60, "backward is no part of the forward call"
    assert found.inclusive("cpu_ns").sum[addmm] == 90, "but it is below it"
    assert found.total("cpu_ns") == 100 + 30 + 5
    assert np.isnan(own.std[linear]), "the spread of what is left is not known"


def test_a_thread_has_the_time_of_its_operators_and_of_their_backward() -> None:
    found = tree()
    assert found.inclusive("cpu_ns").sum[0] == 135
    assert found.inclusive("device_ns").count[0] == 3
    assert found.inclusive("device_ns").std[0] == pytest.approx(np.std([30, 50, 3]))


def test_an_unknown_metric_is_kept_with_its_unit_and_meaning() -> None:
    metric = tree().metric("cycles")
    assert (metric.unit, metric.meaning) == ("", "CPU cycles")
    assert tree().total("cycles") == 7


def test_dropped_and_unavailable_data_is_reported() -> None:
    assert [(row["code"], row["count"]) for row in trace_of()["warnings"].rows()] == [
        ("contexts", 1),
        ("dropped_contexts", 1),
    ]


def test_the_tree_says_what_was_not_collected() -> None:
    form = changed(lacks=[], notes=["calls are not recorded: too old"])
    tree = build_contexts(trace_of(form))
    assert "calls are not recorded: too old" in [note.message for note in tree.notes]


def test_ranks_are_merged() -> None:
    both = checked(build_contexts(concat([of_rank(trace_of(), rank) for rank in (0, 1)])))
    assert len(both) == len(tree())
    assert both.total("cpu_ns") == 2 * tree().total("cpu_ns")


def test_the_only_rank_has_the_tree() -> None:
    of_one = of_rank(trace_of(), 3)
    assert len(build_contexts(of_one, rank=3)) == len(tree())
    with pytest.raises(TraceError, match="has no rank 0"):
        build_contexts(of_one, rank=0)


def test_a_tree_goes_into_the_tables_and_comes_back() -> None:
    once = tree()
    again = build_contexts(with_contexts(Trace({}), once))
    assert list(again.nodes.rows()) == list(once.nodes.rows())
    assert set(again.metrics) == set(once.metrics)
    for name in once.metrics:
        for part in ("count", "sum", "min", "max"):
            expected = getattr(once.own(name), part)
            np.testing.assert_array_equal(getattr(again.own(name), part), expected)


def test_a_query_finds_a_recorded_tree() -> None:
    sql = "select name, sum from contexts join context_metrics on context = contexts.id"
    found = trace_of().query(f"{sql} where metric = 'device_ns' order by sum").to_pylist()
    assert found == [{"name": "Memset (Device)", "sum": 3.0}, {"name": "sgemm", "sum": 80.0}]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"nodes": {"parent": [], "kind": [], "name": []}}, "no root"),
        ({"nodes": {"parent": [-1, 1], "kind": [0, 0], "name": [0, 0]}}, "node 1 has parent 1"),
        ({"nodes": {"parent": [-1], "kind": [0, 0], "name": [0]}}, "nodes.kind"),
        (
            {"nodes": {"parent": [-1], "kind": [0], "name": [99]}, "metrics": {}},
            "a string that does not exist",
        ),
        ({"nodes": {"parent": [-1], "kind": [99], "name": [0]}, "metrics": {}}, "out of bounds"),
        ({"strings": 3}, "strings"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(parts: dict[str, Any], said: str) -> None:
    with pytest.raises(IngestError, match=r"the capture's contexts.json is not valid") as error:
        trace_of(changed(**parts))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_metric_of_a_missing_node_is_refused() -> None:
    device = {**FORM["metrics"]["device_ns"], "node": [6, 99]}
    with pytest.raises(IngestError, match="a node that does not exist"):
        trace_of(changed(metrics={"device_ns": device}))


def test_a_capture_of_a_run_opens_as_a_tree(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "run.stepscope"
    with zipfile.ZipFile(path, "w") as archive:
        manifest = {
            "format": "stepscope capture",
            "version": 1,
            "outcome": "complete",
            "message": "",
            "contains": ["contexts"],
        }
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("contexts.json", changed())
    trace = read(path)
    assert build_contexts(trace).total("cpu_ns") == 135
    assert [row["code"] for row in trace["warnings"].rows()] == ["contexts", "dropped_contexts"]
