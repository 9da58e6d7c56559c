"""How many samples each step of a JAX program takes, from the arguments of compiled functions.

JAX has no data loader. A batch is an argument that no compiled function returned before, with the
batch size as its leading dimension, `(32, 224, 224, 3)`, or as its second one with time first,
`(128, 32)`. Divided among devices or micro-batches, it is `(4, 8, 64)`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax import tree_util

from stepscope.record.batch_size.measured_steps import StepCounts
from stepscope.record.jax.jax_step_detector import arrays_in
from stepscope.record.jax.jit_calls import JitCall


class StepArgument(NamedTuple):
    """One array that a step takes: its shape, and whether the previous step took it too."""

    shape: tuple[int, ...]
    is_kept: bool = False


class ArraySet:
    """Arrays by identity, which it does not keep alive: memory is measured meanwhile."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, array: object) -> bool:
        reference = self._refs.get(id(array))
        return reference is not None and reference() is array

    def update(self, arrays: Iterable[Any]) -> None:
        """Add arrays; NumPy's scalars, which no reference can be made to, are none."""
        self._refs.update((id(array), weakref.ref(array)) for array in arrays if array.shape)

    def forget_gone(self) -> None:
        self._refs = {key: ref for key, ref in self._refs.items() if ref() is not None}


class BatchSamples:
    """Counts the samples in the batches that the calls of a step take, each batch once."""

    def __init__(self, counts: StepCounts, batch: int) -> None:
        self._counts, self._batch = counts, batch
        self._returned = ArraySet()
        self._state_shapes: set[tuple[int, ...]] = set()
        self._of_call: dict[str, int] = {}
        self._taken = ArraySet()  # by the running step
        self._before = ArraySet()  # by the previous step

    def returned(self, call: JitCall) -> None:
        leaves = [leaf for leaf in tree_util.tree_leaves(call.inputs) if hasattr(leaf, "shape")]
        state = [leaf for leaf in leaves if leaf in self._returned]
        self._state_shapes.update(leaf.shape for leaf in state)
        fresh = [leaf for leaf in leaves if self._is_fresh(leaf)]
        self._returned.update(arrays_in(call.outputs))
        arguments = [StepArgument(leaf.shape, leaf in self._before) for leaf in fresh]
        self._of_call[call.name] = samples_in(arguments, self._batch)
        self._taken.update(fresh)
        self.returned_again(call)

    def returned_again(self, call: JitCall) -> None:
        """The same where steps are timed: the call takes what its function took before."""
        self._counts.add_samples(self._of_call.get(call.name, 0))

    def step_ended(self) -> None:
        """The batches of the next step are others, even if they are the same arrays."""
        self._before, self._taken = self._taken, ArraySet()
        self._returned.forget_gone()

    def _is_fresh(self, leaf: Any) -> bool:
        """Whether no function returned it, nor is it shaped as state, such as summed gradients."""
        if leaf in self._returned or leaf in self._taken:
            return False
        return leaf.shape not in self._state_shapes


def samples_in(arguments: Sequence[StepArgument], batch: int) -> int:
    """The samples that a call takes; 0 if no argument is a batch.

    An array that every step takes may be a whole data set, so it counts only if its size is the
    batch size itself.

    Example:
        >>> [samples_in([StepArgument(shape)], 32) for shape in [(32, 9), (4, 8, 9), (64, 9), (7,)]]
        [32, 32, 64, 0]
        >>> samples_in([StepArgument((4, 32, 9)), StepArgument((4, 32))], 32)  # inputs and their targets
        128
        >>> samples_in([StepArgument((128, 32)), StepArgument((128, 32))], 32)  # time first
        32
    """
    shapes = [argument.shape for argument in arguments if argument.shape]
    pairs = [shape[:2] for shape in shapes if len(shape) > 1]
    if any(shape[0] == batch for shape in shapes) or batch in [a * b for a, b in pairs]:
        return batch
    if second := [shape for shape in shapes if len(shape) > 1 and shape[1] == batch]:
        groups = second[0][0]
        ranks = {len(shape) for shape in second if shape[0] == groups}
        return groups * batch if len(ranks) > 1 else batch
    changing = [argument.shape[0] for argument in arguments if argument.shape and not argument.is_kept]
    return max((size for size in changing if size % batch == 0), default=0)
