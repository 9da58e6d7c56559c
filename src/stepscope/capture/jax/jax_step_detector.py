"""Detects the compiled function that ends a training step, from its calls: the *boundary*.

A training step returns the state that the next one takes: parameters, the optimizer's moments.
The candidates are the functions that have taken an array which they returned before; if there is
none, all functions are candidates. Of those, only functions that return at least half as many bytes
as the largest one count (a running mean of the loss is state too). If several remain, the step ends
after the one called least often, and among equals after the last in the iteration, as with several
optimizers.

Where several calls of a function make a step (`micro_batches`), only the first of each step counts.

Functions that JAX compiles itself (`jnp.mean`, operators outside any `jit`) are never counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.capture.jax.micro_batches import MicroBatches, arrays_in

UNSURE_STEPS = 20  # more warm-up steps where a function may not be the training step
_INSPECTED = 4  # the first calls of a function show how much it returns
_LARGE = 0.5
_PATIENCE = 100  # a function not called for as many iterations of all others has left the loop


@dataclass(eq=False)
class _Function:
    name: str
    calls: int = 0
    last: int = 0
    returned_bytes: int = 0
    micro_batches: MicroBatches = field(default_factory=MicroBatches)


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
        function, counts = self._followed(name, inputs, outputs)
        self._clock += 1
        function.calls += counts
        function.last = self._clock
        self.boundary = min(self._in_the_loop(), key=lambda known: (known.calls, -known.last))
        return counts and self.boundary is function and function.calls % self._every == 0

    def _followed(self, name: str, inputs: Any, outputs: Any) -> tuple[_Function, bool]:
        """The function, and whether this call counts; it is another one if others count now."""
        function = self._functions.setdefault(name, _Function(name))
        batches = function.micro_batches
        if not batches.is_followed:
            return function, True
        if batches.calls < _INSPECTED:
            size = sum(array.nbytes for array in arrays_in(outputs))
            function.returned_bytes = max(function.returned_bytes, size)
        each_counted = not batches.make_a_step
        counts = batches.follow(inputs, outputs)
        if each_counted and batches.make_a_step:
            function = self._functions[name] = replace(function, calls=batches.begins - 1)
        self._candidates = _candidates(list(self._functions.values()))
        return function, counts

    @property
    def boundary_name(self) -> str | None:
        """The name of the function that ends a step."""
        return self.boundary.name if self.boundary else None

    step_is: None = None  # one training step, in JAX

    @property
    def is_sure(self) -> bool:
        """Whether the boundary takes what it returned, and is known to end whole steps."""
        batches = self.boundary.micro_batches if self.boundary else MicroBatches()
        return batches.make_a_step or (batches.carries_state and not batches.may_make_a_step)

    @property
    def steps(self) -> int:
        """Training steps that have ended."""
        return self.boundary.calls // self._every if self.boundary else 0

    def _in_the_loop(self) -> list[_Function]:
        patience = _PATIENCE * len(self._functions)
        present = [known for known in self._candidates if self._clock - known.last < patience]
        return present or self._candidates


def _candidates(known: list[_Function]) -> list[_Function]:
    """The functions that may end a step."""
    among = [function for function in known if function.micro_batches.carries_state] or known
    most = max(function.returned_bytes for function in among)
    return [function for function in among if function.returned_bytes >= _LARGE * most]
