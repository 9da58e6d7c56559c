"""The operators that a script calls, with everything that is needed to call them again alone.

Only outermost operators count; operators that they call are part of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.trace import Trace

_PREFIX = "aten::"
_KEYS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")


@dataclass(frozen=True)
class Operator:
    """One call of an operator.

    Attributes:
        name: without `aten::`.
        dims: for each input: sizes of a tensor, a list of sizes for a list of tensors, else empty.
        strides: likewise.
        types: `float`, `long int`, `Scalar`, `TensorList`, …, empty for None.
        values: values of inputs that are not tensors, as recorded.
    """

    name: str
    dims: tuple[Any, ...]
    strides: tuple[Any, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]

    @cached_property
    def signature(self) -> str:
        """The call as text; calls with the same signature do the same work."""
        return json.dumps([self.name, self.dims, self.strides, self.types, self.values],
                          separators=(",", ":"))  # fmt: skip

    @cached_property
    def floats(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of its FP32 inputs, in order."""
        return tuple(
            tuple(size) for size, kind in zip(self.dims, self.types, strict=True) if kind == "float"
        )


@dataclass(frozen=True, eq=False)
class ScriptOperators:
    """The outermost operators of a trace.

    Attributes:
        rows: events.id of each, in order of time.
        calls: the call of each; None if the trace has no shapes.
        around: for each event of the trace, the index of the operator that contains it, or -1.
    """

    rows: Ids
    calls: tuple[Operator | None, ...]
    around: Ids


def find_operators(trace: Trace, rows: Mask) -> ScriptOperators:
    """The outermost operators among the events `rows`, a mask of shape (events,)."""
    events = trace.events
    inside = events.text("name").where(lambda name: name.startswith(_PREFIX))
    number = np.arange(len(events), dtype=np.int32)
    outer = np.append(inherit(events["parent"], np.where(inside, number, -1)), -1)
    outermost = inside & (outer[events["parent"]] < 0)
    chosen = np.flatnonzero(outermost & rows)
    chosen = chosen[np.argsort(events["start_ns"][chosen], kind="stable")]
    index = np.full(len(events), -1, np.int32)
    index[chosen] = np.arange(len(chosen))
    around = inherit(events["parent"], index).astype(np.int64)
    return ScriptOperators(chosen, tuple(_operator(trace, row) for row in chosen.tolist()), around)


def _operator(trace: Trace, row: int) -> Operator | None:
    arguments = trace.event_arguments(row)
    if not all(key in arguments for key in _KEYS):
        return None
    name = str(trace.events.text("name")[row]).removeprefix(_PREFIX)
    dims, strides, types, values = (arguments[key] for key in _KEYS)
    if not len(dims) == len(strides) == len(types) == len(values):
        return None
    return Operator(name, tuple(dims), tuple(strides), tuple(types), tuple(map(str, values)))
