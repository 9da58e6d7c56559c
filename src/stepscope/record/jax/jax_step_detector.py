"""Detects the compiled function that ends a training step, from its calls: the *boundary*.

A training step returns the state that the next one takes: parameters, the optimizer's moments.
The candidates are the functions that have taken an array which they returned before; if there is
none, all functions are candidates. Of those, only functions that return at least half as many bytes
as the largest one count (a running mean of the loss is state too). If several remain, the step ends
after the one called least often, and among equals after the last in the iteration, as with several
optimizers. A function counts as gone only after it was not called for far longer than ever before:
between two calls of an epoch, an evaluation may call another one hundreds of times.

Where several calls of a function make a step (`MicroBatches`), only the first of each step counts.

Functions that JAX compiles itself (`jnp.mean`, operators outside any `jit`) are never counted.
"""

import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jax import tree_util

_MOST = 64  # micro-batches in a step
_FOLLOWED = 2 * _MOST + 2  # calls, unless several are known to make a step
_INSPECTED = 4  # first calls: they show how much is returned, and all their arrays are watched
_WATCHED = 16  # arrays of a later call, the largest
_HALF = 0.5  # of the bytes of the parameters


class MicroBatches:
    """Which calls of a function begin a step, where several make one.

    A function that computes gradients takes parameters, which have the shapes of what it returns. The
    micro-batches of a step take the same arrays, and the first of the next step takes others. That also holds
    where the function keeps the sum, `total, loss = accumulate(params, total, batch)`, which it then takes
    back. Without such parameters, a sum shows itself only by beginning again after an equal number of calls,
    twice. A training step that takes back its parameters never begins again: each of its calls counts.
    """

    def __init__(self) -> None:
        self.calls = 0  # that were followed
        self.carries_state = False  # whether a call took an array that the one before returned
        self.make_a_step = False  # whether several calls are known to make a step
        self.begins = 0  # calls that took neither state nor parameters of the one before
        self._last_begins: list[int] = []
        self._keeps_parameters = False
        self._returned, self._parameters = Arrays(), Arrays()

    @property
    def is_followed(self) -> bool:
        """Whether the next call may show something."""
        return self.make_a_step or self.calls < _FOLLOWED

    @property
    def may_make_a_step(self) -> bool:
        """Whether all calls so far are perhaps micro-batches of the first step."""
        return self._keeps_parameters and self.begins == 1 and self.calls < _FOLLOWED

    def follow(self, inputs: Any, outputs: Any) -> bool:
        """A call has returned: whether it begins a step, as far as is known."""
        taken = [leaf for leaf in tree_util.tree_leaves(inputs) if hasattr(leaf, "nbytes")]
        is_carried = self._returned.share_in(taken) > 0
        self.carries_state |= is_carried
        self._keeps_parameters = self._parameters.share_in(taken) >= _HALF
        begins = not (is_carried or self._keeps_parameters)
        if begins:
            self._note_begin()
        self.calls += 1
        if self.is_followed:
            self._remember(arrays_in(outputs), [leaf for leaf in taken if leaf not in self._returned])
        else:
            self._remember([], [])
        return begins or not self.make_a_step

    def _remember(self, returned: list[Any], taken: list[Any]) -> None:
        watched = None if self.calls <= _INSPECTED else _WATCHED
        shapes = {array.shape for array in returned if array.shape}
        parameters = [array for array in taken if array.shape in shapes]
        self._returned, self._parameters = (
            Arrays(sorted(arrays, key=lambda array: -array.nbytes)[:watched])
            for arrays in (returned, parameters)
        )

    def _note_begin(self) -> None:
        self.begins += 1
        self._last_begins = [*self._last_begins[-2:], self.calls]
        lengths = [b - a for a, b in zip(self._last_begins, self._last_begins[1:], strict=False)]
        if not lengths or not 1 < lengths[-1] <= _MOST:
            return
        regular = len(lengths) == 2 and lengths[0] == lengths[1] and self.carries_state
        self.make_a_step |= bool(self._parameters) or regular


class Arrays:
    """Arrays by identity, which are not kept alive: they may be freed."""

    def __init__(self, arrays: Iterable[Any] = ()) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.update(arrays)

    def __bool__(self) -> bool:
        return bool(self._known)

    def __contains__(self, array: object) -> bool:
        known = self._known.get(id(array))
        return known is not None and known[0]() is array

    def update(self, arrays: Iterable[Any]) -> None:
        for array in arrays:
            with suppress(TypeError):  # NumPy's scalars, to which no reference can be made
                self._known[id(array)] = weakref.ref(array), getattr(array, "nbytes", 0)

    def forget_gone(self) -> None:
        self._known = {key: known for key, known in self._known.items() if known[0]() is not None}

    def share_in(self, taken: list[Any]) -> float:
        """How many of their bytes are among other arrays, 0 to 1."""
        shared = sum(self._known[key][1] for key in {id(array) for array in taken if array in self})
        return shared / max(sum(size for _, size in self._known.values()), 1)


def arrays_in(outputs: Any) -> list[Any]:
    leaves: Iterable[Any] = tree_util.tree_leaves(outputs)
    return [leaf for leaf in leaves if hasattr(leaf, "block_until_ready")]


UNSURE_STEPS = 20  # more warm-up steps where a function may not be the training step
_LARGE = 0.5  # of the bytes that the largest function returns
_PATIENCE = 100  # a function not called for as many iterations of all others has left the loop
_GRADIENTS = "grad(", "value_and_grad("  # as `watch_gradients` names calls outside of jax.jit
_MOST_NAMED = 3  # other functions


@dataclass(eq=False)
class _Function:
    name: str
    first: int = 0  # when it was called first and last, on the detector's clock
    last: int = 0
    calls: int = 0
    counted: int = 0  # calls until the last step ended, and how many the step had
    per_step: int = 0
    longest: int = 0  # its longest period
    returned_bytes: int = 0
    micro_batches: MicroBatches = field(default_factory=MicroBatches)

    @property
    def is_gradient(self) -> bool:
        """Whether it is a gradient that no compiled function asks for."""
        return self.name.startswith(_GRADIENTS)

    @property
    def trains(self) -> bool:
        """Whether it updates something, by taking what it returned before, or a gradient that does."""
        return self.micro_batches.make_a_step or self.micro_batches.carries_state or self.is_gradient


class JaxStepDetector:
    """Counts the calls of a program's own compiled functions and finds the boundary among them."""

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
        function.longest = max(function.longest, self._clock - function.last if function.last else 0)
        function.last = self._clock
        self.boundary = min(self._in_the_loop(), key=lambda candidate: (candidate.calls, -candidate.last))
        if not counts or self.boundary is not function or function.calls % self._every:
            return False
        for other in self._functions.values():
            other.per_step, other.counted = other.calls - other.counted, other.calls
        return True

    def _followed(self, name: str, inputs: Any, outputs: Any) -> tuple[_Function, bool]:
        """The function, and whether this call counts; it is another one if others count now."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _Function(name, first=self._clock)
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
        return self.boundary.name if self.boundary else None

    @property
    def trains(self) -> bool:
        return self.boundary is not None and self.boundary.trains

    @property
    def step_is(self) -> str | None:
        """What a step is, and which functions are called at other times."""
        if (boundary := self.boundary) is None:
            return None
        calls = "one call" if self._every == 1 else f"{self._every} calls"
        if boundary.micro_batches.make_a_step:
            calls = "the calls with equal parameters"
        takes = "takes what it returned before" if self.trains else "takes nothing that it returned before"
        takes = "is outside of jax.jit" if boundary.is_gradient else takes
        others = [f"{function.name} ({function.per_step:,} per step)" for function in self._others()]
        return f"{calls} of {boundary.name}, which {takes}{_listed(others)}"

    def _others(self) -> list[_Function]:
        """The other functions that the last step called, the most frequent first."""
        called = (function for function in self._functions.values() if function.per_step)
        others = (function for function in called if function is not self.boundary)
        return sorted(others, key=lambda function: -function.per_step)

    def surpasses(self, recorded: _Function | None) -> bool:
        """Whether the boundary is a training step, and the recorded function is none, or part of it."""
        boundary = self.boundary
        if boundary is None or recorded is None or boundary is recorded or not self.is_sure:
            return False
        return not recorded.trains or recorded.last > boundary.first

    @property
    def is_sure(self) -> bool:
        """Whether the boundary takes what it returned, and is known to end whole steps."""
        batches = self.boundary.micro_batches if self.boundary else MicroBatches()
        is_gradient = self.boundary is not None and self.boundary.is_gradient and batches.begins > 1
        return batches.make_a_step or ((batches.carries_state or is_gradient) and not batches.may_make_a_step)

    @property
    def steps(self) -> int:
        return self.boundary.calls // self._every if self.boundary else 0

    def _in_the_loop(self) -> list[_Function]:
        present = [
            function
            for function in self._candidates
            if self._clock - function.last < _PATIENCE * max(len(self._functions), function.longest)
        ]
        return present or self._candidates


def _listed(others: list[str]) -> str:
    """The others in words; empty if there are none."""
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return f"; other calls: {', '.join(others[:_MOST_NAMED])}{more}" if others else ""


def _candidates(functions: list[_Function]) -> list[_Function]:
    among = [function for function in functions if function.micro_batches.carries_state] or functions
    most = max(function.returned_bytes for function in among)
    return [function for function in among if function.returned_bytes >= _LARGE * most]
