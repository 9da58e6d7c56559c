"""The array types of the project: one name, one element type, one meaning."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # a column of any element type
IntArray = NDArray[np.integer[Any]]  # integers of any width
Integers = NDArray[np.int64]  # whole numbers of any meaning, as columns of a file hold them side by side
Mask = NDArray[np.bool_]  # one truth value per row
Floats = NDArray[np.float64]  # real numbers: ratios, shares, rates
Times = NDArray[np.int64]  # nanoseconds: points in time since the trace's start, or durations
Ids = NDArray[np.int64]  # ids of rows of a table (events, tasks, nodes, steps); -1 for none
Ids32 = NDArray[np.int32]  # ids of rows as the trace's tables store them; -1 for none
Rows = NDArray[np.intp]  # positions in an array, as `np.flatnonzero` and `np.argsort` return them
Codes = NDArray[np.int64]  # small numbers, each of which represents one distinct value
Codes32 = NDArray[np.int32]  # `Codes` as the trace's tables store them
Codes8 = NDArray[np.int8]  # `Codes` of a closed list such as the stages or the categories; -1 for none
Counts = NDArray[np.int64]  # how many
Octets = NDArray[np.uint8]  # the bytes of a buffer
