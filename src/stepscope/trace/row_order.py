"""Orders of rows and runs of equal keys."""

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Ids, IntArray, Mask, Rows, Times
from stepscope.base.compiled.library import function

_SHORT = np.dtype(np.uint16)


def inverse(order: IntArray, count: int | None = None) -> NDArray[np.int64]:
    """The position of each row in `order`: of all of them, or of some of `count`, -1 for others."""
    place = np.full(len(order) if count is None else count, -1, np.int64)
    place[order] = np.arange(len(order))
    return place


def stable_order(keys: IntArray) -> Rows:
    """The rows in order of their keys, of equal ones as they are.

    Few possible keys are sorted by counting, which NumPy does for 16 bits.
    """
    if len(keys) and keys.dtype.itemsize > _SHORT.itemsize:
        least, most = keys.min(), keys.max()
        if int(most) - int(least) <= np.iinfo(_SHORT).max:
            keys = (keys - least).astype(_SHORT)
    return np.argsort(keys, kind="stable")


def grouped(keys: IntArray, groups: int) -> tuple[IntArray, Ids]:
    """The rows of each group, from the group of each row, 0 to `groups` - 1.

    Returns the rows by group, those of one as they are, int32, shape (n,); and where each group begins
    in these and the last one ends, int64, shape (groups + 1,). Raises IndexError if a key is no group.

    Example:
        >>> [part.tolist() for part in grouped(np.array([2, 0, 2]), 3)]
        [[1, 0, 2], [0, 1, 1, 3]]
    """
    first, order = np.empty(groups + 1, np.int64), np.empty(len(keys), np.int32)
    columns = np.ascontiguousarray(keys, np.int32), groups, first, order
    if not function("stepscope_grouped")(len(keys), *columns):
        raise IndexError(f"expected groups 0 to {groups - 1}, found {keys.min()} to {keys.max()}")
    return order, first


def last_begun(starts: Times, moments: Times) -> Rows:
    """The span that began last at or before each moment, -1 before all; starts ascend.

    Example:
        >>> last_begun(np.array([2, 5]), np.array([1, 2, 9])).tolist()
        [-1, 0, 1]
    """
    return np.searchsorted(starts, moments, side="right") - 1


def running_span(starts: Times, ends: Times, moments: Times) -> Rows:
    """The span that began last at or before each moment, if it still runs, else -1; starts ascend.

    Example:
        >>> running_span(np.array([2, 5]), np.array([3, 6]), np.array([1, 2, 3, 5])).tolist()
        [-1, 0, -1, 1]
    """
    span = last_begun(starts, moments)
    return np.where((span >= 0) & (moments < np.append(ends, 0)[span]), span, -1)


def count_within(moments: Times, starts: Times, ends: Times) -> Ids:
    """How many of some ascending moments lie in each span [start, end), the shape of `starts`."""
    return np.searchsorted(moments, ends) - np.searchsorted(moments, starts)


def start_order(start: Times, duration: Times) -> IntArray | None:
    """The rows in order of start, of equal starts the longest first; None if they are already."""
    order = np.empty(len(start), np.int32)
    times = (np.ascontiguousarray(column, np.int64) for column in (start, duration))
    state = function("stepscope_start_order")(len(start), *times, order)
    if not state:
        raise MemoryError("too little memory to sort events by their start")
    return order if state == 1 else None


def begins_run(*keys: IntArray) -> Mask:
    """The first row of each run of rows that are equal in all of some keys; bool, shape (n,)."""
    begins = np.ones(len(keys[0]), np.bool_)
    begins[1:] = keys[0][1:] != keys[0][:-1]
    for key in keys[1:]:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def rows_by_key(keys: IntArray, rows: IntArray | None = None) -> dict[int, Rows]:
    """The rows, or some of them, of each distinct key; a mask for each key takes the square of many.

    Example:
        >>> {key: rows.tolist() for key, rows in rows_by_key(np.array([7, 5, 7])).items()}
        {5: [1], 7: [0, 2]}
    """
    chosen = np.arange(len(keys)) if rows is None else rows
    order = chosen[stable_order(keys[chosen])]
    first = np.flatnonzero(begins_run(keys[order]))
    return dict(zip(keys[order[first]].tolist(), np.split(order, first[1:]), strict=False))


def greatest_of_runs(values: IntArray, first: IntArray) -> Rows:
    """The first row with the greatest value of each run, which begin at the rows `first`.

    Example:
        >>> greatest_of_runs(np.array([1, 3, 3, 2]), np.array([0, 3])).tolist()
        [1, 3]
    """
    most = np.maximum.reduceat(values, first)
    rows = np.flatnonzero(values == np.repeat(most, np.diff(np.append(first, len(values)))))
    return rows[np.searchsorted(rows, first)]


def place_in_group(keys: IntArray) -> Ids:
    """How many earlier rows have the key of each row; int64, shape (n,).

    Example:
        >>> place_in_group(np.array([7, 5, 7])).tolist()
        [0, 0, 1]
    """
    order = np.argsort(keys, kind="stable")
    place, number = np.arange(len(keys)), np.empty(len(keys), np.int64)
    number[order] = place - np.maximum.accumulate(np.where(begins_run(keys[order]), place, 0))
    return number


def places_among(values: IntArray, wanted: IntArray) -> Ids:
    """The position of each wanted value among some, that of the first of equal ones; -1 where it is none."""
    if not len(values):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(values, kind="stable")
    place = np.minimum(np.searchsorted(values[order], wanted), len(values) - 1)
    return np.where(values[order][place] == wanted, order[place], -1).astype(np.int64)


def last_of_key(keys: Ids, places: IntArray, wanted: Ids, until: IntArray) -> Rows:
    """For each wanted key the row of that key with the last place up to one, else with the first place.

    Places are rows or ranks; -1 where no row has the key. Shapes (n,) and (wanted,), twice each.

    Example:
        >>> last_of_key(np.array([7, 5, 7]), np.array([0, 1, 2]), np.array([7, 7, 6]), np.array([1, 9, 9]))
        array([ 0,  2, -1])
    """
    if not len(keys):
        return np.full(len(wanted), -1, np.intp)
    order = np.lexsort((places, keys))
    keys, limit = keys[order], int(max(places.max(), until.max(initial=0))) + 1
    own, sought = (np.searchsorted(keys, each) for each in (keys, wanted))
    last = np.searchsorted(own * limit + places[order], sought * limit + until, side="right") - 1
    found = np.minimum(np.maximum(last, sought), len(keys) - 1)
    return np.where(keys[found] == wanted, order[found], -1)


def outermost_of_key(first: IntArray, end: IntArray, keys: Ids) -> Mask:
    """Which of some spans of rows, `first` to `end` - 1, lie in no other one of their key; shape (n,)."""
    order = np.lexsort((first, keys))
    beyond = keys[order] * (int(end.max(initial=0)) + 1)  # the rows of each key apart from the others'
    reach = np.maximum.accumulate(end[order] + beyond)
    outer = np.ones(len(first), np.bool_)
    outer[order[1:]] = first[order[1:]] + beyond[1:] >= reach[:-1]
    return outer


def ends_run(keys: IntArray) -> Mask:
    """The last row of each run of equal keys; bool, shape (n,)."""
    ends = np.ones(len(keys), np.bool_)
    ends[:-1] = keys[1:] != keys[:-1]
    return ends
