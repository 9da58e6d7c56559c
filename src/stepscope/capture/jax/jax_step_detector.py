"""Detects the compiled function that ends a training step, from its calls: the *boundary*.

A training step returns the state that the next one takes: parameters, the optimizer's moments.
The candidates are the functions that have taken an array which they returned before; if there is
none, all functions are candidates. Of those, only functions that return at least half as many bytes
as the largest one count (a running mean of the loss is state too). If several remain, the step ends
after the one called least often, and among equals after the last in the iteration, as with several
optimizers.

A function may also carry its state through part of an iteration only, such as a sum of gradients
that begins with zeros and is applied outside `jit`. If it begins again after an equal number of
calls, twice, then only the calls count that take none of what the one before returned.

Functions that JAX compiles itself (`jnp.mean`, operators outside any `jit`) are never counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from jax import tree_util

UNSURE_STEPS = 20  # more warm-up steps where a function may not be the training step
_INSPECTED = 4  # the first calls of a function show what it does
_LONGEST_SUM = 64  # calls after which a function begins again
_FOLLOWED, _WATCHED = 2 * _LONGEST_SUM + 2, 16
_LARGE = 0.5
_PATIENCE = 100  # a function not called for as many iterations of all others has left the loop


@dataclass(eq=False)
class _Function:
    """A compiled function of the program.

    Attributes:
        calls: those that count.
        last: when it was called last, in calls of all functions.
        followed: calls whose arguments were looked at.
        returned_bytes: the most that a call returned.
        carried: which of the returned arrays came back, by their places, with their bytes.
        returned: of the previous call, by their places.
        begins: which of the followed calls took nothing that the one before returned.
        begins_again: whether it does that regularly, so that only these calls count.
    """

    name: str
    calls: int = 0
    last: int = 0
    followed: int = 0
    returned_bytes: int = 0
    carried: dict[int, int] = field(default_factory=dict)
    returned: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    begins: list[int] = field(default_factory=list)
    begins_again: bool = False

    @property
    def is_followed(self) -> bool:
        """Whether the arguments of the next call show something."""
        if self.followed < _INSPECTED or self.begins_again:
            return True
        return bool(self.carried) and self.followed < _FOLLOWED


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
        if function.is_followed:
            _follow(function, inputs, outputs)
            function = self._functions[name] = _counted_by_begins(function)
            self._candidates = _candidates(list(self._functions.values()))
        self._clock += 1
        function.last = self._clock
        counts = not function.begins_again or function.begins[-1] == function.followed - 1
        function.calls += counts
        self.boundary = min(self._in_the_loop(), key=lambda known: (known.calls, -known.last))
        return counts and self.boundary is function and function.calls % self._every == 0

    @property
    def boundary_name(self) -> str | None:
        """The name of the function that ends a step."""
        return self.boundary.name if self.boundary else None

    step_is: None = None  # one training step, in JAX

    @property
    def is_sure(self) -> bool:
        """Whether the boundary is known to take what it returned."""
        return self.boundary is not None and bool(self.boundary.carried)

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self.boundary.calls // self._every if self.boundary else 0

    def _in_the_loop(self) -> list[_Function]:
        patience = _PATIENCE * len(self._functions)
        present = [known for known in self._candidates if self._clock - known.last < patience]
        return present or self._candidates


def _follow(function: _Function, inputs: Any, outputs: Any) -> None:
    """Learn from a call how much is returned, and whether it takes what the last one returned."""
    taken = {id(leaf) for leaf in tree_util.tree_leaves(inputs)}
    arrays = arrays_in(outputs)
    back = [place for place, ref in function.returned.items() if id(ref()) in taken]
    function.carried |= {place: arrays[place].nbytes for place in back if place < len(arrays)}
    if not back:
        function.begins = [*function.begins[-2:], function.followed]
    function.followed += 1
    watched: Iterable[int] = range(len(arrays))
    if function.followed <= _INSPECTED:
        function.returned_bytes = max(function.returned_bytes, sum(one.nbytes for one in arrays))
    elif len(arrays) > _WATCHED:
        by_size = sorted(function.carried, key=lambda place: -function.carried[place])
        watched = (place for place in by_size[:_WATCHED] if place < len(arrays))
    function.returned = {place: weakref.ref(arrays[place]) for place in watched}
    if not function.is_followed:
        function.returned = {}


def _counted_by_begins(function: _Function) -> _Function:
    """The function, as another one from the call on that shows that it begins again regularly."""
    if function.begins_again or len(function.begins) < 3:
        return function
    first, second, third = function.begins[-3:]
    regular = second - first == third - second > 1
    if not (regular and function.carried and third == function.followed - 1):
        return function
    return replace(function, begins_again=True, calls=2)


def _candidates(known: list[_Function]) -> list[_Function]:
    """The functions that may end a step."""
    among = [function for function in known if function.carried] or known
    most = max(function.returned_bytes for function in among)
    return [function for function in among if function.returned_bytes >= _LARGE * most]


def arrays_in(outputs: Any) -> list[Any]:
    """The arrays among what a function returned."""
    leaves: Iterable[Any] = tree_util.tree_leaves(outputs)
    return [leaf for leaf in leaves if hasattr(leaf, "block_until_ready")]
