"""Detects the compiled function that ends a training step, from its calls: the *boundary*.

A training step returns the state that the next one takes: parameters, the optimizer's moments.
The candidates are the functions that have taken an array which they returned before; if there is
none, all functions are candidates. Of those, only functions that return at least half as many bytes
as the largest one count (a running mean of the loss is state too). If several remain, the step ends
after the one called least often, and among equals after the last in the iteration, as with several
optimizers.

Functions that JAX compiles itself (`jnp.mean`, operators outside any `jit`) are never counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from jax import tree_util

UNSURE_STEPS = 20  # more warm-up steps where a function may not be the training step
_INSPECTED = 4  # the first calls of a function show what it does
_LARGE = 0.5
_PATIENCE = 100  # a function not called for as many iterations of all others has left the loop


@dataclass(eq=False)
class _Function:
    name: str
    calls: int = 0
    last: int = 0
    inspected: int = 0
    returned_bytes: int = 0
    carries_state: bool = False
    returned: list[weakref.ref[Any]] = field(default_factory=list)


class JaxStepDetector:
    """Counts the calls of a program's own compiled functions and finds the boundary among them.

    Args:
        every: how many calls of the boundary make a step.
    """

    def __init__(self, every: int = 1) -> None:
        self._every = every
        self._functions: dict[str, _Function] = {}
        self._candidates: list[_Function] = []
        self._clock = 0
        self.boundary: _Function | None = None

    def advance(self, name: str, inputs: Any, outputs: Any) -> bool:
        """Count one call; True where it ends a training step."""
        function = self._functions.setdefault(name, _Function(name))
        if function.inspected < _INSPECTED:
            _inspect(function, inputs, outputs)
            self._candidates = _candidates(list(self._functions.values()))
        self._clock += 1
        function.calls += 1
        function.last = self._clock
        self.boundary = min(self._in_the_loop(), key=lambda known: (known.calls, -known.last))
        return self.boundary is function and function.calls % self._every == 0

    @property
    def boundary_name(self) -> str | None:
        """The name of the function that ends a step."""
        return self.boundary.name if self.boundary else None

    step_is: None = None  # one training step, in JAX

    @property
    def is_sure(self) -> bool:
        """Whether the boundary is known to take what it returned."""
        return self.boundary is not None and self.boundary.carries_state

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self.boundary.calls // self._every if self.boundary else 0

    def _in_the_loop(self) -> list[_Function]:
        patience = _PATIENCE * len(self._functions)
        present = [known for known in self._candidates if self._clock - known.last < patience]
        return present or self._candidates


def _inspect(function: _Function, inputs: Any, outputs: Any) -> None:
    """Learn from a call how much is returned, and whether it takes what the last one returned."""
    function.inspected += 1
    returned = {id(array) for array in (ref() for ref in function.returned)} - {id(None)}
    function.carries_state |= any(id(leaf) in returned for leaf in tree_util.tree_leaves(inputs))
    arrays = arrays_in(outputs)
    size = sum(array.nbytes for array in arrays)
    function.returned_bytes = max(function.returned_bytes, size)
    is_last = function.inspected == _INSPECTED
    function.returned = [] if is_last else [weakref.ref(array) for array in arrays]


def _candidates(known: list[_Function]) -> list[_Function]:
    """The functions that may end a step."""
    among = [function for function in known if function.carries_state] or known
    most = max(function.returned_bytes for function in among)
    return [function for function in among if function.returned_bytes >= _LARGE * most]


def arrays_in(outputs: Any) -> list[Any]:
    """The arrays among what a function returned."""
    leaves: Iterable[Any] = tree_util.tree_leaves(outputs)
    return [leaf for leaf in leaves if hasattr(leaf, "block_until_ready")]
