"""Backward operators and the forward operators they belong to."""

from __future__ import annotations

from stepscope.facts.annotate.links.backward import link_backward
from stepscope.testing import drawn_trace
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


def test_sequence_number_zero_is_a_number() -> None:
    trace = link_backward(
        drawn_trace("""
            main     |  0  5 | aten::mm    | seq=0 fwd=0
            autograd | 10 11 | MmBackward0 | seq=0 fwd=1
        """)
    )
    assert links(trace) == {"MmBackward0": "aten::mm"}
