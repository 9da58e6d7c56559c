"""Distinct values, against NumPy's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stepscope.trace.sets import distinct


@given(arrays.arrays(np.int64, st.integers(0, 50), elements=st.integers(-5, 5)))
def test_distinct_is_what_numpy_calls_unique(values):
    assert distinct(values).tolist() == np.unique(values).tolist()
    assert distinct(values).dtype == values.dtype
