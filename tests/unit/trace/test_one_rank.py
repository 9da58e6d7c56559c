"""One rank of several is what it was before they were joined."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank, one_rank
from stepscope.trace.trace import Trace

TEXT = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  30 | aten::mm
    main     | 12  14 | cudaLaunchKernel | corr=7
    stream 7 | {start} 60 | gemm         | corr=7
    stream 7 | 70  80 | ncclAllReduce
"""


def rank(number: int) -> Trace:
    trace = of_rank(annotate(drawn_trace(TEXT.format(start=20 + number))), number)
    return trace.with_metadata(capture={"outcome": f"that of rank {number}"})


def links(trace: Trace) -> list[tuple[str | None, str | None, int]]:
    """Launches: the names of both ends, and when the work begins."""
    names, start = trace.events.text("name"), trace.events["start_ns"]
    rows = zip(trace["launches"]["cpu_event"], trace["launches"]["device_event"], strict=True)
    return [(names[call], names[work], int(start[work])) for call, work in rows]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_rank_is_what_it_was(number: int) -> None:
    alone = rank(number)
    part = one_rank(concat([rank(0), rank(1), rank(2)]), number)
    assert (part.metadata.ranks, part.metadata.capture) == ((number,), alone.metadata.capture)
    for name in ("start_ns", "duration_ns", "parent", "step", "stage"):
        assert part.events[name].tolist() == alone.events[name].tolist()
    assert links(part) == links(alone)
    for name in ("steps", "stages", "idle"):
        assert list(part[name].rows()) == list(alone[name].rows())


def test_a_trace_of_one_rank_is_itself() -> None:
    trace = rank(3)
    assert one_rank(trace, 3) is trace
