"""When each node of a graph happens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from oracles import graph as oracle

from stepscope.models.ranks.replay import longest_path

EDGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.floats(-5, 5)), max_size=30)


@given(ready=st.lists(st.floats(-9, 9), min_size=10, max_size=10), edges=EDGES)
def test_the_longest_path_is_that_of_the_oracle(
    ready: list[float], edges: list[tuple[int, int, float]]
) -> None:
    """Also where cycles block some nodes."""
    source, target, delay = (
        np.array([edge[part] for edge in sorted(edges)], kind)
        for part, kind in enumerate((np.int64, np.int64, np.float64))
    )
    first = np.searchsorted(source, np.arange(11))
    graph = (np.array(ready), first, target, delay)
    np.testing.assert_array_equal(longest_path(*graph), oracle.longest_path(*graph))
