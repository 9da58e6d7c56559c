"""Which compiled function ends a training step, learnt from its calls: the *anchor*.

A training step returns the state that it takes the next time: parameters, the optimizer's moments.
So the functions considered are those that have taken an array which they had returned; where no
function has, all are. Of them only those count that return at least half as many bytes as the
largest (a running mean of the loss is state too). If several are left, the step ends after the one
that is called least often, and of equals the last in the turn: as with several optimizers.

Functions that JAX itself compiles (`jnp.mean`, operators outside of any `jit`) are not told here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jax import tree_util

_LOOKS = 4  # the first calls of a function that are looked at: they tell what it does
_HEAVY = 0.5
_PATIENCE = 100  # a function that sat out as many turns of all others has left the loop


@dataclass(eq=False)
class _Function:
    name: str
    calls: int = 0
    last: int = 0
    looks: int = 0
    returned_bytes: int = 0
    carries: bool = False
    returned: list[weakref.ref[Any]] = field(default_factory=list)


class CallCycle:
    """Counts the calls of a program's own compiled functions and finds the anchor among them."""

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}
        self._counted: list[_Function] = []
        self._clock = 0
        self.anchor: _Function | None = None

    def ends_step(self, name: str, inputs: Any, outputs: Any) -> bool:
        """Count one call; True where it ends a training step."""
        one = self._functions.setdefault(name, _Function(name))
        if one.looks < _LOOKS:
            _look(one, inputs, outputs)
            self._counted = _that_count(list(self._functions.values()))
        self._clock += 1
        one.calls += 1
        one.last = self._clock
        self.anchor = min(self._in_the_loop(), key=lambda one: (one.calls, -one.last))
        return self.anchor is one

    @property
    def anchor_name(self) -> str | None:
        """The name of the function that ends a step."""
        return self.anchor.name if self.anchor else None

    step_is: None = None  # one training step, in JAX

    @property
    def is_sure(self) -> bool:
        """Whether the anchor is known to take what it returned."""
        return self.anchor is not None and self.anchor.carries

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self.anchor.calls if self.anchor else 0

    def _in_the_loop(self) -> list[_Function]:
        patience = _PATIENCE * len(self._functions)
        present = [one for one in self._counted if self._clock - one.last < patience]
        return present or self._counted


def _look(one: _Function, inputs: Any, outputs: Any) -> None:
    """Learn from a call how much is returned, and whether it takes what the last one returned."""
    one.looks += 1
    returned = {id(array) for array in (reference() for reference in one.returned)} - {id(None)}
    one.carries |= any(id(leaf) in returned for leaf in tree_util.tree_leaves(inputs))
    arrays = arrays_in(outputs)
    one.returned_bytes = max(one.returned_bytes, sum(array.nbytes for array in arrays))
    one.returned = [] if one.looks == _LOOKS else [weakref.ref(array) for array in arrays]


def _that_count(known: list[_Function]) -> list[_Function]:
    """The functions that may end a step."""
    among = [one for one in known if one.carries] or known
    most = max(one.returned_bytes for one in among)
    return [one for one in among if one.returned_bytes >= _HEAVY * most]


def arrays_in(outputs: Any) -> list[Any]:
    """The arrays among what a function returned."""
    leaves: Iterable[Any] = tree_util.tree_leaves(outputs)
    return [leaf for leaf in leaves if hasattr(leaf, "block_until_ready")]
