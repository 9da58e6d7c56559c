"""What the page is told of the calling-context tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import ask, opened

from stepscope.errors import ServeError, TraceError
from stepscope.faces.page.open_files import Workbench
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import build_contexts, with_contexts
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

FASTER = """
    main     | 0  60 | ProfilerStep#1
    main     | 5  20 | aten::conv2d     | seq=1 fwd=0
    main     | 6   8 | cudaLaunchKernel | corr=1
    stream 7 | 30 40 | winograd         | corr=1
"""


@pytest.fixture
def trace() -> TraceView:
    return opened()


def names(answer: dict[str, object]) -> list[str]:
    strings, boxes = answer["strings"], answer["boxes"]
    return [strings[code] for code in boxes["name"]]  # type: ignore[index]


def test_device_time_comes_first_where_there_is_a_device(trace: TraceView) -> None:
    told = ask(trace, "contexts")
    assert (told["by"], told["unit"], told["total"]) == ("device", "ns", 45_000)
    assert {one["name"] for one in told["measures"]} >= {"cpu", "device", "calls", "launches"}
    assert names(told)[:3] == ["all", "main", "step"]


def test_another_measure_upside_down_and_zoomed_in(trace: TraceView) -> None:
    turned = ask(trace, "contexts", by="device", up=1)
    assert names(turned)[1] == "winograd"
    told = ask(trace, "contexts", by="cpu")
    node = told["boxes"]["node"][names(told).index("aten::conv2d")]
    inside = ask(trace, "contexts", by="cpu", start=node)
    assert names(inside)[0] == "aten::conv2d"
    assert [one["name"] for one in inside["path"]][:2] == ["all", "main"]


def test_one_step_alone(trace: TraceView) -> None:
    assert ask(trace, "contexts", by="cpu", step=2)["total"] == 30_000


@pytest.mark.parametrize(
    ("asked", "times"),
    [({}, 2), ({"rank": 0}, 2), ({"step": 1, "rank": 0}, 1)],
    ids=["two steps and one", "of a rank", "one step"],
)
def test_against_as_many_steps_of_another_open_trace(
    trace: TraceView, asked: dict[str, int], times: int
) -> None:
    """The other trace has one step of 10 µs on its device."""
    trace = TraceView(trace.trace, lambda id: annotate(drawn_trace(FASTER)))
    told = ask(trace, "contexts", against="faster", by="device", **asked)
    assert told["total_before"] == times * 10_000
    assert len(told["boxes"]["before"]) == len(told["boxes"]["value"])


def test_against_a_trace_that_is_not_open_is_refused(trace: TraceView) -> None:
    with pytest.raises(ServeError, match="no other trace is open, so none has the id 'gone'"):
        ask(trace, "contexts", against="gone")


def test_a_measure_or_a_node_that_is_not_there_is_refused(trace: TraceView) -> None:
    with pytest.raises(TraceError, match="no metric 'stalls'"):
        ask(trace, "contexts", by="stalls")
    with pytest.raises(ServeError, match="expected a node below"):
        ask(trace, "contexts", start=9999)


def test_findings_name_the_nodes_that_show_them(trace: TraceView) -> None:
    told = ask(trace, "context_findings", by="device")["findings"]
    nodes = set(ask(trace, "contexts")["boxes"]["node"])
    assert told
    assert any(set(one["nodes"]) & nodes for one in told)
    assert all(one["what"] for one in told)


def test_a_collected_tree_without_any_event_or_step() -> None:
    tree = build_contexts(annotate(drawn_trace(FASTER)))
    collected = TraceView(with_contexts(Trace({}), tree))
    told = ask(collected, "contexts")
    assert (told["by"], told["total"]) == ("device", 10_000)
    assert "aten::conv2d" in names(told)


def test_traces_of_one_workbench_know_each_other(tmp_path: Path) -> None:
    event = '[{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]'
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(event)
    bench = Workbench([tmp_path / "a.json", tmp_path / "b.json"])
    bench.load(cache=False).join()
    told = ask(bench["a"].view, "contexts", by="cpu", against="b")
    assert (told["total"], told["total_before"]) == (9_000, 9_000)


SORTS = """
    main | 0 900 | ProfilerStep#1
    main | 0 800 | /home/me/train.py(3): <module>
    main | 5 700 | aten::sort
"""


def test_findings_of_collected_contexts_name_their_nodes() -> None:
    """Upside down it is the places of these nodes that are named."""
    tree = build_contexts(annotate(drawn_trace(SORTS)))
    collected = TraceView(with_contexts(Trace({}), tree))
    for up in ("", "1"):
        shown = ask(collected, "contexts", by="cpu", up=up)
        (hot,) = ask(collected, "context_findings", by="cpu", up=up)["findings"]
        assert hot["rule"] == "hotspot"
        boxes = dict(zip(shown["boxes"]["node"], names(shown), strict=True))
        assert [boxes[node] for node in hot["nodes"]] == ["aten::sort"]
