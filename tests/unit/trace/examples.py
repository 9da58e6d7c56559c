"""Traces to try things on, drawn at random, and what it means that two are the same."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from stepscope.testing import drawn_trace
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_TRACKS = ("main", "loader", "stream 7")
_NAMES = ("mm", "add", "Größe 大", "")


@st.composite
def drawn_traces(draw: st.DrawFn, **metadata: int) -> Trace:
    """A trace of up to a dozen events on three tracks, with options and an arrow now and then."""
    lines = [draw(_lines(number)) for number in range(draw(st.integers(0, 12)))]
    if len(lines) > 1 and draw(st.booleans()):
        lines.append("fwdbwd | arrow | e0 > e1")
    return drawn_trace("\n".join(lines), **metadata)


@st.composite
def _lines(draw: st.DrawFn, number: int) -> str:
    start = draw(st.integers(0, 50))
    end = start + draw(st.integers(0, 50))
    track = draw(st.sampled_from(_TRACKS))
    name = f"e{number}" if number < 2 else draw(st.sampled_from(_NAMES)) or "-"
    options = draw(st.sampled_from(("", "| seq=3", "| corr=5 shape=[2,3]", "| bytes=7 note=大")))
    return f"{track} | {start} {end} | {name} {options}"


def assert_same(found: Trace, expected: Trace) -> None:
    """Every cell, its type included, the metadata and the arguments."""
    assert found.metadata == expected.metadata
    assert list(found.arguments.items()) == list(expected.arguments.items())
    for name, table in expected.tables.items():
        assert_same_table(found[name], table)


def assert_same_table(found: Table, expected: Table) -> None:
    """Every cell, its type included."""
    assert len(found) == len(expected), expected.schema.name
    for name, column in expected.columns().items():
        if isinstance(column, Text):
            assert list(found.text(name)) == list(column)
        else:
            assert found[name].dtype == column.dtype
            np.testing.assert_array_equal(found[name], column)
