"""The array types of the project: one name, one element type, one meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""A column of any element type."""

IntArray = NDArray[np.integer[Any]]
"""Integers of any width."""

Integers = NDArray[np.int64]
"""Whole numbers of any meaning, as columns of a file hold them side by side."""

Mask = NDArray[np.bool_]
"""One truth value per row."""

Floats = NDArray[np.float64]
"""Real numbers: ratios, shares, rates."""

Times = NDArray[np.int64]
"""Nanoseconds: points in time since the trace's start, or durations."""

Ids = NDArray[np.int64]
"""Ids of rows of a table (events, tasks, nodes, steps); -1 for none."""

Ids32 = NDArray[np.int32]
"""Ids of rows as the trace's tables store them; -1 for none."""

Rows = NDArray[np.intp]
"""Positions in an array, as `np.flatnonzero`, `np.argsort` and `np.searchsorted` return them."""

Codes = NDArray[np.int64]
"""Small numbers, each of which represents one distinct value."""

Codes32 = NDArray[np.int32]
"""`Codes` as the trace's tables store them."""

Codes8 = NDArray[np.int8]
"""`Codes` of a closed list such as the stages or the categories; -1 for none."""

Counts = NDArray[np.int64]
"""How many."""

Octets = NDArray[np.uint8]
"""The bytes of a buffer."""
