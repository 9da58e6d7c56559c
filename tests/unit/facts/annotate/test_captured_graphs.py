"""Graphs that a file replays, paired with captures of the same work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facts import warning_codes

from stepscope.facts.annotate.links import cuda_graphs
from stepscope.facts.annotate.links.cuda_graphs import (
    CapturedNode,
    Captures,
    capture_of,
    captures_of,
    link_replays,
    recorded_captures,
    replayed,
    replayed_modules,
    with_captures,
)
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

NAMES = {
    "B": "cudaStreamBeginCapture",
    "E": "hipStreamEndCapture_v2",
    "C": "cuStreamBeginCapture_ptsz",
    "x": "op",
}


@pytest.mark.parametrize(
    ("row", "captures"),
    [
        ("xx", [-1, -1]),
        ("xBxEx", [-1, 0, 0, -1, -1]),
        ("xEx", [0, -1, -1]),  # the recording began within a capture
        ("xExBx", [0, -1, -1, 1, 1]),
        ("BxCxExEx", [0, 0, 1, 1, 0, 0, -1, -1]),  # the body of a conditional node
        ("BxEBxE", [0, 0, -1, 1, 1, -1]),
    ],
)
def test_events_are_in_the_innermost_capture(row: str, captures: list[int]) -> None:
    lines = [
        f"main | {place} {place + 1} | {NAMES[letter]} | cat=runtime" for place, letter in enumerate(row)
    ]
    assert capture_of(drawn_trace("\n".join(lines))).tolist() == captures


def test_what_several_nodes_agree_on_is_known() -> None:
    one = CapturedNode(0, "k", "aten::mm", "a", "forward", 3)
    assert cuda_graphs._agreed([one]) == one
    assert cuda_graphs._agreed([one, one._replace(module="b", frame=4)]) == one._replace(
        module=None, frame=-1
    )
    assert cuda_graphs._agreed([one, CapturedNode(1, "j", "aten::t", "a", "loss", 3)]) == CapturedNode(
        0, "", "", "a", "", 3
    )


A1, A2, COPY = (
    CapturedNode(0, "a", module="m1"),
    CapturedNode(0, "a", module="m2"),
    CapturedNode(1, module="c"),
)
ALIKE = Captures([[0, 2], [1, 2]], [A1, A2, COPY])
UNNAMED = Captures([[0, 1]], [CapturedNode(0, module="m"), COPY])
WORK = ((0, "a"), (1, ""))


def graph(items: tuple[tuple[int, str], ...] = WORK, has_ids: bool = True, has_order: bool = True) -> Any:
    return cuda_graphs._Graph(items, np.arange(len(items)), np.arange(len(items)), has_ids, has_order)


@pytest.mark.parametrize(
    ("captures", "graphs", "modules"),
    [
        (ALIKE, [graph(), graph()], [["m1", "c"], ["m2", "c"]]),  # as many are in order
        (ALIKE, [graph()], [[None, "c"]]),
        (ALIKE, [graph()] * 3, []),  # more are not all from these
        (ALIKE, [graph(has_ids=False)] * 2, [[None, "c"]] * 2),
        (ALIKE, [graph(((1, ""), (0, "a")))], []),
        (ALIKE, [graph(has_order=False)], [[None, "c"]]),
        (UNNAMED, [graph()], [["m", "c"]]),  # by kinds
        (UNNAMED, [graph(((1, ""), (0, "a")))], []),
        (UNNAMED, [graph(has_order=False)], []),
    ],
)
def test_graphs_are_paired_with_captures_of_the_same_work(
    captures: Captures, graphs: list[Any], modules: list[list[str | None]]
) -> None:
    assert [[node.module for node in nodes] for _, nodes in cuda_graphs._paired(graphs, captures)] == modules


def replays(*kernels: str) -> tuple[Trace, Any]:
    """A graph launch, and its work: lines of stream, start and name with options."""
    lines = ["main | 0 1 | cudaGraphLaunch | corr=1", "main | 50 51 | cudaGraphLaunch | corr=2"]
    for line in kernels:
        stream, at, rest = line.split(" ", 2)
        name, _, options = rest.partition(" ")
        corr = 1 if int(at) < 50 else 2
        lines.append(f"stream {stream} | {at} {int(at) + 1} | {name} | corr={corr} {options}")
    trace = link_launches(drawn_trace("\n".join(lines)))
    rows = np.flatnonzero(replayed(trace))
    return trace, [
        (
            found.items,
            sorted(
                zip(
                    (trace.events["start_ns"][rows[found.rows]] // 1000).tolist(),
                    found.item.tolist(),
                    strict=True,
                )
            ),
            found.has_ids,
            found.has_order,
        )
        for found in cuda_graphs._graphs(trace, rows)
    ]


def test_graphs_have_their_nodes_in_order_of_ids() -> None:
    _, found = replays(
        *(
            "7 10 b graph_id=5 graph_node_id=9",
            "8 12 a graph_id=5 graph_node_id=8",
            "7 14 c graph_id=6 graph_node_id=3",
        ),
        *("7 60 b graph_id=5 graph_node_id=9", "8 62 a graph_id=5 graph_node_id=8", "7 64 lost"),
    )
    assert found == [
        (((0, "a"), (0, "b")), [(10, 1), (12, 0), (60, 1), (62, 0)], True, True),
        (((0, "c"),), [(14, 0)], True, True),
    ]
    _, found = replays(f"7 10 a graph_node_id={(3 << 32) + 1}", f"7 12 b graph_node_id={(4 << 32) + 1}")
    assert [one[0] for one in found] == [((0, "a"),), ((0, "b"),)]


def test_without_ids_replays_of_the_same_work_are_one_graph() -> None:
    _, found = replays("7 10 b", "7 12 a", "7 14 Memcpy", "7 60 b", "7 62 a", "7 64 Memcpy")
    assert found == [
        (((0, "b"), (0, "a"), (1, "")), [(10, 0), (12, 1), (14, 2), (60, 0), (62, 1), (64, 2)], False, True)
    ]
    _, found = replays("7 10 b", "8 12 a", "7 60 a", "8 62 b")
    assert [one[0] for one in found] == [((0, "a"), (0, "b"))] * 2
    assert [one[3] for one in found] == [False, False]
    _, found = replays("7 10 a", "8 12 a")  # one kernel on two streams
    assert found == []


def test_replayed_work_has_the_stage_and_module_of_its_capture() -> None:
    captured = Captures(
        [[0, 1]],
        [CapturedNode(0, "a", "aten::mm", "m", "forward", 0), CapturedNode(0, "b", "aten::t", "n", "", -1)],
        [(-1, "f.py", 3, "f")],
        {"m": "M"},
    )
    trace, _ = replays("7 10 a", "7 12 b", "7 60 a", "7 62 b")
    plain = link_replays(trace)
    assert warning_codes(plain) == {"graph_replays": 4}
    found = link_replays(with_captures(trace, captured))
    rows, paths, classes = replayed_modules(found)
    assert (len(rows), paths, classes) == (4, ["m", "n", "m", "n"], {"m": "M"})
    names = list(found.events.text("name"))
    stage = list(found.events.text("stage"))
    assert {name: stage[row] for row, name in enumerate(names)} == {
        "cudaGraphLaunch": None,
        "a": "forward",
        "b": None,
    }
    assert warning_codes(found) == {"graph_replays": 2}  # without a line
    assert list(found["origins"].text("scope")) == ["aten::mm", "aten::t"]
    assert found["origins"]["frame"].tolist() == [0, -1]
    assert [tuple(row.values())[1:] for row in found["frames"].rows()] == [(None, "f", "f.py", 3)]
    kept = with_captures(trace, captured).with_events(stage=Text.of(["decode"] * 6))
    assert set(link_replays(kept).events.text("stage")) == {"decode"}
    assert captures_of(found).graphs == [[0, 1]]
    bare = drawn_trace("main | 0 1 | x")
    assert link_replays(bare) is bare


def test_annotations_of_kernels_name_operators_and_modules() -> None:
    trace, _ = replays(
        '7 10 a str="label"', '7 12 b annotation="note" module__fqn="m.n"', "7 14 c module__fqn=m", "7 16 d"
    )
    found = link_replays(trace)
    nodes = captures_of(found).nodes
    assert [(node.operator, node.module) for node in nodes] == [("label", ""), ("note", "m.n"), ("", "m")]
    assert replayed_modules(found)[1] == ["", "m.n", "m"]


def test_captures_are_what_launch_calls_without_work_say() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0  1 | cudaStreamBeginCapture
        main     |  2 20 | train.py(3): step
        main     |  3 12 | aten::mm
        main     |  4  5 | hipLaunchKernel | kernel=gemm
        main     |  6  7 | cudaLaunchHostFunc
        main     | 13 15 | cudaMemcpyAsync
        main     | 21 22 | cudaStreamEndCapture
        main     | 23 24 | cudaLaunchKernel
        main     | 30 31 | cudaStreamBeginCapture
        main     | 32 40 | stepscope.lines: a.py:3 | cat=cpu_op
        main     | 33 34 | hipLaunchKernel | kernel=other
        main     | 35 36 | cudaLaunchKernel | corr=1
        main     | 41 42 | cudaStreamEndCapture
        stream 7 | 50 51 | k | corr=1
    """)
    )
    module = [0 if name in ("hipLaunchKernel",) else -1 for name in trace.events.text("name")]
    trace = trace.with_events(module=module).with_table(Table(MODULES, {"path": ["net"], "class": ["Net"]}))
    found = recorded_captures(trace)
    assert found.graphs == [[0, 1], [2]]
    assert found.nodes == [
        CapturedNode(0, "gemm", "aten::mm", "net", "forward", 0),
        CapturedNode(1, "", "", "", "", 0),
        CapturedNode(0, "other", "", "net", "forward", 1),
    ]
    assert found.frames == [(-1, "train.py", 3, "step"), (-1, "a.py", 3, "")]
    assert found.classes == {"net": "Net"}


def test_what_is_known_of_captures_stays_in_a_file() -> None:
    properties = {cuda_graphs.CAPTURED: {"0": [1]}}
    assert Metadata.from_json(Metadata(properties=properties).to_json()).properties == properties
