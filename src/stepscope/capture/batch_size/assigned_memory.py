"""What XLA assigns to the program of a step, by kind.

Arguments that an earlier call returned are the state of the training, others its inputs. An
optimizer's part of the state is known by the names in the tree of arguments: `.opt_state[0].mu`.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

from jax import tree_util

from stepscope.capture.jax.jit_calls import JitCall

_OPTIMIZERS = re.compile(
    r"(?<![A-Za-z])(mu|nu|trace|count|momentum|moments?|velocity|velocities|opt\w*)(?![A-Za-z])"
)
_Made = dict[int, "weakref.ref[Any]"]


class ProgramMemory:
    """The memory of programs by kind; knows what was returned by which function before."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}

    def returned(self, call: JitCall) -> None:
        """A call has returned: what it returned is state where another one takes it."""
        leaves = tree_util.tree_leaves(call.outputs)
        arrays = [leaf for leaf in leaves if hasattr(leaf, "sharding")]
        self._made[call.name] = {id(array): weakref.ref(array) for array in arrays}

    def kinds(self, call: JitCall, stats: Any, others: int) -> dict[str, int]:
        """Bytes by kind, which add up to the peak.

        Args:
            call: of the program.
            stats: its buffer assignment, as `Compiled.memory_analysis()` returns it.
            others: bytes of arrays on the device besides.
        """
        kept = {"parameters": 0, "optimizer_state": 0}
        for path, leaf in tree_util.tree_flatten_with_path(call.inputs)[0]:
            if self._is_state(leaf):
                name = tree_util.keystr(path)
                kind = "optimizer_state" if _OPTIMIZERS.search(name) else "parameters"
                kept[kind] += size_on_device(leaf)
        inputs = int(stats.argument_size_in_bytes) - sum(kept.values())
        if not kept["optimizer_state"]:
            kept = {"state": kept["parameters"]}
        return {
            **kept,
            "inputs": max(inputs, 0),
            "results": int(stats.output_size_in_bytes - stats.alias_size_in_bytes),
            "temporaries": int(stats.temp_size_in_bytes),
            "others": others,
        }

    def _is_state(self, leaf: Any) -> bool:
        made = (found.get(id(leaf)) for found in self._made.values())
        return any(ref is not None and ref() is leaf for ref in made)


def size_on_device(array: Any) -> int:
    """Bytes of an array on one of the devices that it is on, also after it was donated."""
    size = array.dtype.itemsize
    for length in array.sharding.shard_shape(array.shape):
        size *= length
    return int(size)
