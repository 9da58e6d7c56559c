"""The arguments of a call as the compiler sees them, and what changed between two calls."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import jax
from jax import tree_util

_MOST_KEPT = 8
_SCALARS = (bool, int, float, complex)


class Leaf(NamedTuple):
    """An argument, or a part of one.

    Attributes:
        shape: None for what is no array.
        dtype: that of the array, or the type of the value.
        weak: whether the type yields to that of other operands.
        place: the devices that it is committed to.
        value: of a number, or a hash of what may be a static argument; None for arrays.
    """

    shape: tuple[int, ...] | None
    dtype: str
    weak: bool
    place: str
    value: object


Signature = dict[str, Leaf]
# By importance: what makes JAX compile again, in words.
_CHANGES = (
    ("shape", "new shape of"),
    ("dtype", "new type of"),
    ("weak", "new weak type of"),
    ("place", "new sharding of"),
    ("value", "new static argument"),
)


class KnownSignatures:
    """The last signatures that a function was compiled for."""

    def __init__(self) -> None:
        self._kept: list[Signature] = []

    def why_again(self, now: Signature) -> str:
        """Why `now` is compiled although others were; empty for the first. It is kept.

        Example:
            >>> known = KnownSignatures()
            >>> known.why_again({"x": Leaf((2,), "float32", False, "", None)})
            ''
            >>> known.why_again({"x": Leaf((3,), "float32", False, "", None)})
            'new shape of x'
        """
        before = self._kept
        self._kept = [*before[1 - _MOST_KEPT :], now]
        if not before:
            return ""
        nearest = min(reversed(before), key=lambda known: _distance(known, now))
        return change_between(nearest, now)


def change_between(before: Signature, now: Signature) -> str:
    """What changed between two signatures, in words.

    Args:
        before, now: by the path of each argument.

    Returns:
        For example `new shape of batch['x'] and 2 more`.
    """
    if before.keys() != now.keys():
        differing = [path for path in now if path not in before] or list(before.keys() - now.keys())
        return f"new structure of {_root(differing[0])}"
    for field, words in _CHANGES:
        changed = [p for p in now if getattr(before[p], field) != getattr(now[p], field)]
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            return f"{words} {changed[0]}{more}"
    return "same arguments"


def signature_of(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Signature:
    """The arguments of a call by their paths; a donated array still has its shape."""
    try:
        bound = inspect.signature(function).bind(*arguments, **keywords).arguments
    except (TypeError, ValueError):
        bound = {"args": arguments, **keywords}
    found = tree_util.tree_flatten_with_path(dict(bound), is_leaf=lambda leaf: leaf is None)[0]
    return {_path(path): _leaf(value) for path, value in found}


def _leaf(value: Any) -> Leaf:
    if isinstance(value, _SCALARS):
        return Leaf((), str(jax.dtypes.result_type(value)), True, "", repr(value))
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return Leaf(None, type(value).__qualname__, False, "", _hash(value))
    place = str(value.sharding) if getattr(value, "committed", False) else ""
    return Leaf(tuple(shape), str(dtype), bool(getattr(value, "weak_type", False)), place, None)


def _hash(value: Any) -> int:
    """Static arguments must be hashable; JAX compares them in the same way."""
    try:
        return hash(value)
    except TypeError:
        return id(value)


def _path(keys: tuple[Any, ...]) -> str:
    return f"{keys[0].key}{tree_util.keystr(keys[1:])}"


def _root(path: str) -> str:
    """The parameter that a path begins with."""
    return path.partition("[")[0].partition(".")[0]


def _distance(before: Signature, now: Signature) -> int:
    """In how many arguments two signatures differ; a value counts least."""
    differing = len(before.keys() ^ now.keys())
    changed = [(before[p], now[p]) for p in now if p in before and before[p] != now[p]]
    return 2 * differing + sum(1 + (old[:4] != new[:4]) for old, new in changed)
