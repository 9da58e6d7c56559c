"""Calls with the same path merged, level by level, in preorder."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.base.arrays import Ids, Ids32, IntArray
from stepscope.trace.nesting import depths, totals_inside
from stepscope.trace.row_order import grouped, inverse


@dataclass(frozen=True)
class Paths:
    """A tree of distinct paths, in preorder."""

    parent: Ids  # int64, shape (nodes,), -1 at a root; always before its children
    key: Ids  # the key of each node's elements, int64, shape (nodes,)
    node: Ids  # the node of each input element, int64, shape (elements,)


def merge_paths(parent: IntArray, key: IntArray) -> Paths:
    """Merge the elements of a forest whose keys are equal all the way from the root.

    The parent of a root is -1, and keys are at least 0, shape (elements,) both. The children in the
    merged tree are in the order of their first elements.

    Example:
        >>> merge_paths(np.array([-1, 0, 0, 2]), np.array([0, 7, 7, 8])).parent.tolist()
        [-1, 0, 1]
    """
    depth = depths(parent.astype(np.int32))
    node = np.full(len(parent), -1, np.int64)
    span = int(key.max(initial=0)) + 1
    parents, keys, size = [node[:0]], [node[:0]], 0
    for rows in levels(depth):
        above = np.where(parent[rows] >= 0, node[parent[rows]], -1)
        path, number, _ = distinct((above + 1) * span + key[rows].astype(np.int64))
        node[rows] = size + number
        parents.append(path // span - 1)
        keys.append(path % span)
        size += len(path)
    return _in_preorder(np.concatenate(parents), np.concatenate(keys), node)


def distinct(codes: Ids) -> tuple[Ids, Ids, Ids]:
    """Distinct codes in order of appearance, the index of each code, and each one's first position.

    Example:
        >>> [part.tolist() for part in distinct(np.array([7, 3, 7]))]
        [[7, 3], [0, 1, 0], [0, 1]]
    """
    values, first, number = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return values[order], inverse(order)[number], first[order]


def _in_preorder(parent: Ids, key: Ids, node: Ids) -> Paths:
    place = preorder(parent)
    order = inverse(place)
    above = parent[order]
    return Paths(np.where(above >= 0, place[above], -1), key[order], place[node])


def agreed(node: Ids, code: IntArray, size: int) -> Ids32:
    """The code that all elements of a `node` (-1: of none) share, -1 where they differ or there are none."""
    low, high = np.full(size, np.iinfo(np.int32).max, np.int32), np.full(size, -1, np.int32)
    inside = node >= 0
    np.minimum.at(low, node[inside], code[inside].astype(np.int32))
    np.maximum.at(high, node[inside], code[inside].astype(np.int32))
    return np.where(low == high, high, -1).astype(np.int32)


def levels(depth: IntArray) -> list[IntArray]:
    """The rows of each depth, from the top."""
    order, first = grouped(depth, int(depth.max(initial=-1)) + 1)
    return [order[begin:end] for begin, end in pairwise(first.tolist())]


def subtree_sizes(parent: IntArray) -> Ids:
    """The number of nodes in each subtree, its root included, int64, shape (nodes,)."""
    return totals_inside(parent.astype(np.int32), np.ones(len(parent), np.int64))


def preorder(parent: IntArray) -> Ids:
    """The position of each node in preorder; siblings keep their order.

    Example:
        >>> preorder(np.array([-1, 0, 0, 1])).tolist()
        [0, 1, 3, 2]
    """
    size = subtree_sizes(parent)
    place = np.zeros(len(parent), np.int64)
    for rows in levels(depths(parent.astype(np.int32))):
        above = parent[rows]
        order = np.argsort(above, kind="stable")  # siblings side by side
        rows, above = rows[order], above[order]
        before = np.cumsum(size[rows]) - size[rows]
        fresh = np.flatnonzero(np.diff(above, prepend=above[:1] - 1))
        run = np.repeat(before[fresh], np.diff(np.append(fresh, len(rows))))
        place[rows] = before - run + np.where(above >= 0, place[above] + 1, 0)
    return place
