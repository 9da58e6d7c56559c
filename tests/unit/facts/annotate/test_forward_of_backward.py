"""Backward operators and the forward operators they belong to."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links import backward
from stepscope.facts.annotate.links.backward import is_backward, is_forward, link_backward, plain, recomputed
from stepscope.testing import drawn_trace
from stepscope.trace.nesting import innermost
from stepscope.trace.trace import Trace


def links(trace: Trace) -> dict[str | None, str | None]:
    """Name of each linked event to the name and start of its forward event."""
    names = trace.events.text("name")
    forward = trace.events["forward_event"]
    return {names[event]: names[forward[event]] for event in (forward >= 0).nonzero()[0].tolist()}


def test_sequence_number_and_thread_link() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | aten::mm       | seq=1
            main     |  5  9 | aten::relu     | seq=2
            autograd | 20 25 | ReluBackward0  | seq=2 fwd=1
            autograd | 25 30 | MmBackward0    | seq=1 fwd=1
        """)
    )
    assert links(trace) == {"ReluBackward0": "aten::relu", "MmBackward0": "aten::mm"}


def test_of_operators_that_peek_at_one_number_the_last_made_the_node() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0 9 | aten::linear         | seq=1
            main     |  1 3 | aten::t              | seq=1
            main     |  3 8 | aten::addmm          | seq=2
            main     | 10 19 | aten::dropout       | seq=3
            main     | 11 12 | aten::empty         | seq=3
            main     | 13 18 | aten::native_dropout | seq=3
            autograd | 30 31 | DropoutBackward0    | seq=3 fwd=1
            autograd | 31 32 | AddmmBackward0      | seq=2 fwd=1
            autograd | 33 34 | TBackward0          | seq=1 fwd=1
        """)
    )
    assert links(trace) == {
        "DropoutBackward0": "aten::native_dropout",
        "AddmmBackward0": "aten::addmm",
        "TBackward0": "aten::t",
    }


def test_a_number_used_again_means_the_last_before() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | first  | seq=1
            autograd | 10 15 | A      | seq=1 fwd=1
            main     | 20 25 | second | seq=1
            autograd | 30 35 | B      | seq=1 fwd=1
        """)
    )
    assert links(trace) == {"A": "first", "B": "second"}


def test_two_forward_threads_have_numbers_of_their_own() -> None:
    trace = link_backward(
        drawn_trace("""
            one      |  0  5 | a | seq=1
            one      |  5  6 | c | seq=2
            two      |  0  4 | b | seq=7
            two      |  4  6 | d | seq=8
            autograd | 10 11 | A | seq=1 fwd=1
            autograd | 11 12 | C | seq=2 fwd=1
            autograd | 12 13 | B | seq=7 fwd=2
            autograd | 13 14 | D | seq=8 fwd=2
        """)
    )
    assert links(trace) == {"A": "a", "B": "b", "C": "c", "D": "d"}


def test_threads_of_replicas_with_the_same_numbers_have_tracks_of_their_own() -> None:
    trace = link_backward(
        drawn_trace("""
            replica 0 |  0  5 | a | seq=0
            replica 1 |  0  4 | b | seq=0
            autograd  | 10 11 | A | seq=0 fwd=2
            autograd  | 11 12 | B | seq=0 fwd=3
        """)
    )
    assert links(trace) == {"A": "a", "B": "b"}


def test_arrows_say_which_track_a_forward_thread_is() -> None:
    trace = link_backward(
        drawn_trace("""
            busy     |  0  1 | x | seq=1
            busy     |  1  2 | y | seq=2
            quiet    |  0  2 | a | seq=1
            autograd | 10 11 | A | seq=1 fwd=1
            autograd | 11 12 | N | seq=2 fwd=1
            fwdbwd   | arrow | a > A
        """)
    )
    assert links(trace) == {"A": "a"}


def test_an_arrow_links_where_no_number_does() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | aten::mm
            autograd | 10 11 | MmBackward0
            fwdbwd   | arrow | aten::mm > MmBackward0
        """)
    )
    assert links(trace) == {"MmBackward0": "aten::mm"}


def test_a_number_counts_for_more_than_an_arrow() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | a | seq=1
            main     |  5  6 | x
            autograd | 10 11 | A | seq=1 fwd=1
            fwdbwd   | arrow | x > A
        """)
    )
    assert links(trace) == {"A": "a"}


def test_sequence_number_zero_is_a_number() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | aten::mm    | seq=0 fwd=0
            autograd | 10 11 | MmBackward0 | seq=0 fwd=1
        """)
    )
    assert links(trace) == {"MmBackward0": "aten::mm"}


@pytest.mark.parametrize(("nodes", "operators"), [(1000, 4000), (2, 3), (1, 2)])
def test_without_numbers_nodes_are_of_the_operators_of_their_names(
    nodes: int, operators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes apart, each from its last operator to its first; what a node runs itself is no forward work."""
    monkeypatch.setattr(backward, "_NODES", nodes)
    monkeypatch.setattr(backward, "_OPERATORS", operators)
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | aten::mm
            main     |  1  4 | aten::mm
            main     |  5  9 | aten::relu_
            main     |  9 11 | aten::view
            main     | 11 13 | aten::add
            autograd | 20 22 | autograd::engine::evaluate_function: AddBackward0
            autograd | 22 25 | autograd::engine::evaluate_function: ReluBackward0
            autograd | 25 30 | autograd::engine::evaluate_function: MmBackward0
            autograd | 26 29 | MmBackward0
            autograd | 27 28 | aten::mm
            main     | 40 45 | aten::mm
            autograd | 50 55 | MmBackwardBackward0
            autograd | 55 60 | MmBackward0
        """)
    )
    begin = (trace.events["start_ns"] // 1000).tolist()
    forward = trace.events["forward_event"].tolist()
    found = {begin[row]: begin[to] for row, to in enumerate(forward) if to >= 0}
    assert found == {20: 11, 22: 5, 25: 0, 55: 40}


def test_the_gradient_of_a_scripted_graph_is_of_its_last_run() -> None:
    node = "autograd | {0} {1} | torch::jit::DifferentiableGraphBackward | seq={2} fwd=1"
    trace = link_backward(
        drawn_trace(f"""
            {node.format(0, 1, 4)}
            main     | 10 20 | <forward op>
            main     | 11 12 | aten::a | seq=5
            main     | 13 14 | aten::b | seq=6
            main     | 15 16 | aten::other | seq=4
            {node.format(22, 23, 4)}
            main     | 30 40 | <forward op>
            main     | 31 32 | aten::a | seq=5
            main     | 40 41 | aten::outer
            main     | 40.2 40.8 | aten::a | seq=5
            {node.format(42, 43, 4)}
            {node.format(44, 45, 9)}
        """)
    )
    begin = (trace.events["start_ns"] // 1000).tolist()
    forward = trace.events["forward_event"].tolist()
    nodes = [row for row, name in enumerate(trace.events.text("name")) if name and name.startswith("torch")]
    assert [forward[row] if forward[row] < 0 else begin[forward[row]] for row in nodes] == [-1, 10, 30, -1]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("aten::relu_", "relu"),
        ("autograd::engine::evaluate_function: ReluBackward0", "relu"),
        ("torch::autograd::CopyBackwards", "copy"),
        ("a::b::Scaled_Dot_Product", "scaleddotproduct"),
        ("MmBackward12", "mm"),
        ("Backward0x", "backward0x"),
    ],
)
def test_operators_and_nodes_are_compared_by_plain_names(name: str, same: str) -> None:
    assert plain(name) == same


def test_marks_of_autograd_tell_both_passes() -> None:
    events = drawn_trace("""
        main | 0 1 | forward  | seq=0
        main | 2 3 | thread 0 | seq=1 fwd=0
        main | 4 5 | backward | seq=0 fwd=1
        main | 6 7 | neither
        main | 8 9 | unnumbered | fwd=1
    """).events
    assert is_forward(events).tolist() == [True, True, False, False, False]
    assert is_backward(events).tolist() == [False, False, True, False, False]
    assert is_forward(events, [2, 1]).tolist() == [False, True]


@pytest.mark.parametrize(
    ("inside", "again"),
    [
        ("main | 3 6 | aten::addmm | seq=2\nmain | 7 8 | aten::mm", ["aten::addmm"]),
        ("main | 3 6 | aten::addmm | seq=2", []),  # all is recorded: gradients of gradients
        ("main | 3 8 | aten::outer\nmain | 4 6 | aten::addmm | seq=2", ["aten::addmm"]),
        ("main | 3 8 | aten::addmm | seq=2\nmain | 4 6 | aten::t", []),  # inside of what is recorded
    ],
)
def test_what_a_node_records_besides_other_operators_is_repeated(inside: str, again: list[str]) -> None:
    trace = drawn_trace(f"""
        main | 0 1 | aten::before | seq=9
        main | 2 9 | AddmmBackward0 | seq=1 fwd=1
        {inside}
        main | 10 12 | aten::after | seq=3
    """)
    in_backward = (trace.events["start_ns"] >= 2000) & (trace.events["start_ns"] < 10_000)
    found = recomputed(trace.events, in_backward)
    assert [name for name, one in zip(trace.events.text("name"), found, strict=True) if one] == again
    assert not recomputed(trace.events, in_backward & False).any()


def test_what_a_pipeline_sends_between_backward_passes_is_not_repeated() -> None:
    trace = annotate(
        drawn_trace("""
        main | 0 100 | ProfilerStep#0
        main | 5 10  | aten::mm | seq=1
        main | 12 18 | aten::mm | seq=2
        main | 20 30 | MmBackward0 | seq=2 fwd=1
        main | 31 49 | c10d::send | seq=3
        main | 50 60 | MmBackward0 | seq=1 fwd=1
        main | 70 80 | Optimizer.step#SGD.step
        """)
    )
    sent = trace.events.text("name").mask("c10d::send")
    assert trace.events.text("stage")[int(sent.argmax())] == "backward"
    assert not trace.events["recompute"][sent].any()


def test_the_innermost_of_some_events_around_each() -> None:
    trace = drawn_trace("main | 0 9 | a\nmain | 1 8 | b\nmain | 2 7 | a\nmain | 3 4 | c\nmain | 10 11 | b")
    for chosen, around in (("a", [0, 0, 2, 2, -1]), ("b", [-1, 1, 1, 1, 4]), ("d", [-1] * 5)):
        rows = trace.events.text("name").mask(chosen)
        assert innermost(trace.events["parent"], rows).tolist() == around
