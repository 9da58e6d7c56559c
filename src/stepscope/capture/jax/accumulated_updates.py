"""Recognizes a function that updates its parameters at every k-th call only.

So does a training step with `optax.MultiSteps`, or with `lax.cond` on a counter of its own. Each
call takes what the one before returned, so only values show it: the parameters stay as they are
but for each k-th call, after which the sum of gradients, or the counter, is zero. Most functions
change all of their results at each of their first calls, and are followed no further; these few
calls wait for their results.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from jax import tree_util

_MOST = 64  # calls until an update
_FIRST = 4  # calls, of which one at least updates nothing
_LARGEST_BYTES, _WATCHED, _COUNTERS = 1 << 20, 12, 8
_COUNTER = "mini_step"  # of optax.MultiSteps


class _Seen(NamedTuple):
    """What the calls did to one result, a value for each call."""

    is_zero: list[bool]
    has_changed: list[bool]


class AccumulatedUpdates:
    """Follows the results of one function.

    Attributes:
        calls_per_update: more than one if that is known.
    """

    def __init__(self) -> None:
        self.calls_per_update = 1
        self._calls = self._last_update = 0
        self._watched: list[int] | None = None
        self._floats: set[int] = set()
        self._counters: set[int] = set()  # of a library that is known to accumulate
        self._values: dict[int, bytes] = {}
        self._seen: dict[int, _Seen] = {}

    @property
    def may_accumulate(self) -> bool:
        """Whether later calls may show that only some of them update."""
        return self.calls_per_update == 1 and self._watched != []

    @property
    def updates(self) -> int:
        """Calls that began the sum of an update, as far as calls were followed."""
        before = self._last_update + 1
        return before // self.calls_per_update + (before % self.calls_per_update > 0)

    def begins(self, call: int) -> bool:
        """Whether a call, counted from 0, begins the sum of an update."""
        return (call - self._last_update - 1) % self.calls_per_update == 0

    def follow(self, outputs: Any) -> None:
        """A call has returned."""
        if not self.may_accumulate:
            return
        leaves = tree_util.tree_leaves(outputs)
        if self._watched is None:
            self._choose(leaves, outputs)
        if self._watched and max(self._watched) < len(leaves) and self._calls < 2 * _MOST + 2:
            self._note({place: leaves[place] for place in self._watched})
            self._calls += 1
            self._decide()
        else:
            self._watched = []

    def _choose(self, leaves: list[Any], outputs: Any) -> None:
        readable = [place for place, leaf in enumerate(leaves) if _is_readable(leaf)]
        floats = [one for one in readable if "float" in leaves[one].dtype.name]
        floats = _of_smallest(leaves, [one for one in floats if leaves[one].size > 1])
        counters = [one for one in readable if leaves[one].dtype.kind in "iu"]
        counters = [one for one in counters if leaves[one].size == 1][:_COUNTERS]
        with_paths, _ = tree_util.tree_flatten_with_path(outputs)
        named = [
            place
            for place, (path, _) in enumerate(with_paths)
            if path and getattr(path[-1], "name", "") == _COUNTER and place in readable
        ]
        self._floats, self._counters = set(floats), set(named)
        self._watched = sorted({*floats, *counters, *named})
        self._seen = {place: _Seen([], []) for place in self._watched}

    def _note(self, leaves: dict[int, Any]) -> None:
        for place, leaf in leaves.items():
            raw = leaf.tobytes()
            self._seen[place].is_zero.append(not raw.strip(b"\0"))
            self._seen[place].has_changed.append(raw != self._values.get(place))
            self._values[place] = raw

    def _decide(self) -> None:
        for place in self._counters or self._seen:
            ends = [call for call, zero in enumerate(self._seen[place].is_zero) if zero]
            lengths = {after - before for before, after in pairwise(ends)}
            is_regular = len(lengths) == 1 and 1 < min(lengths) <= _MOST
            if is_regular and (self._counters or self._updates_at(ends)):
                self.calls_per_update = lengths.pop()
                self._last_update = ends[-1]
                return
        if self._calls >= _FIRST and not self._may_show_more():
            self._watched = []

    def _may_show_more(self) -> bool:
        """Whether a counter counts, or some parameters stayed as they were."""
        if self._counters:
            return not all(all(self._seen[place].is_zero) for place in self._counters)
        return any(not all(self._seen[place].has_changed) for place in self._floats)

    def _updates_at(self, ends: list[int]) -> bool:
        """Whether some parameters changed in these calls only, from the first of them on."""
        of_floats = (self._seen[place].has_changed for place in self._floats)
        expected = [call in ends for call in range(ends[0], self._calls)]
        return any(changed[ends[0] :] == expected for changed in of_floats)


def _is_readable(leaf: Any) -> bool:
    """Whether it is an array, not too large, whose values this process has."""
    size = getattr(leaf, "nbytes", _LARGEST_BYTES + 1)
    is_here = getattr(leaf, "is_fully_addressable", False)
    return bool(is_here and size <= _LARGEST_BYTES and hasattr(leaf.dtype, "name"))


def _of_smallest(leaves: list[Any], places: list[int]) -> list[int]:
    """Some of the arrays of the least size, from all over the results."""
    least = min((leaves[one].nbytes for one in places), default=0)
    same = [one for one in places if leaves[one].nbytes == least]
    return same[:: -(-len(same) // _WATCHED) or 1]
