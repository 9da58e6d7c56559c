"""What operators were given: the shapes and types of their tensors, as recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from stepscope.trace.trace import Trace

_BYTES = {
    "double": 8, "long": 8, "long int": 8, "int64_t": 8, "complex<float>": 8, "complex<double>": 16,
    "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "short int": 2,
    "bool": 1, "char": 1, "signed char": 1, "unsigned char": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor: its shape, and bytes an element (0 where its type is not known)."""

    shape: tuple[int, ...]
    width: int

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return self.elements * self.width


@dataclass(frozen=True)
class Call:
    """The recorded arguments of one operator.

    Attributes:
        inputs: for each argument its tensors: one, several for a list, none for anything else.
        values: for each argument its value as text, empty where not recorded.
        recorded_flops: operations, where the recorder itself tells.
        recorded_bytes: bytes moved, where the recorder itself tells.
    """

    inputs: tuple[tuple[Tensor, ...], ...]
    values: tuple[str, ...]
    recorded_flops: float | None = None
    recorded_bytes: float | None = None

    def tensor(self, place: int) -> Tensor | None:
        """The tensor at a place of the arguments, None where there is none."""
        found = self.inputs[place] if place < len(self.inputs) else ()
        return found[0] if len(found) == 1 else None

    def numbers(self, place: int) -> list[int] | None:
        """A list of whole numbers at a place of the arguments, None where it is none."""
        try:
            value = json.loads(self.values[place].lower())
        except (IndexError, ValueError):
            return None
        return [int(one) for one in value] if isinstance(value, list) else None

    def is_true(self, place: int) -> bool:
        """Whether the argument at a place is known to be true."""
        return self.values[place : place + 1] == ("True",)

    @property
    def width(self) -> int:
        """Bytes an element of what a product multiplies, 0 where not known.

        Of all products the second argument is such; the first may be a bias, the last a sum.
        """
        second = self.tensor(1)
        return second.width if second else 0


def call_of(trace: Trace, event: int) -> Call:
    """What an operator was called with; without inputs where shapes were not recorded."""
    return read_call(trace.event_arguments(event))


def read_call(arguments: Mapping[str, Any]) -> Call:
    """The same from an event's arguments.

    Source: Kineto's trace format, `Input Dims`, `Input type` and `Concrete Inputs`; inductor,
    `runtime/triton_heuristics.py`, `kernel_flop` and `kernel_num_gb`.
    """
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    values = arguments.get("Concrete Inputs")
    told = _positive(arguments.get("kernel_flop")), _positive(arguments.get("kernel_num_gb"))
    recorded = told[0], None if told[1] is None else told[1] * 1e9
    if not isinstance(dims, list) or not isinstance(types, list):
        return Call((), (), *recorded)
    inputs = tuple(_tensors(one, str(kind)) for one, kind in zip(dims, types, strict=False))
    texts = tuple(map(str, values)) if isinstance(values, list) else ()
    return Call(inputs, texts, *recorded)


def _positive(value: Any) -> float | None:
    """A number that says something: 0 is what inductor writes where it does not know."""
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _tensors(dims: Any, kind: str) -> tuple[Tensor, ...]:
    if not isinstance(dims, list):
        return ()
    if dims and all(isinstance(one, list) for one in dims):
        return tuple(tensor for one in dims for tensor in _tensors(one, kind))
    width = _BYTES.get(kind.removeprefix("c10::").lower(), 0)
    is_tensor = width > 0 or (kind == "TensorList" and bool(dims))
    if not is_tensor or not all(isinstance(one, int) for one in dims):
        return ()
    return (Tensor(tuple(dims), width or 4),)
