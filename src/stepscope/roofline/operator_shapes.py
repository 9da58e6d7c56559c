"""Arguments of operators: the shapes and types of their tensors, as recorded."""

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
    """A tensor: its shape, and bytes per element (0 if its type is unknown)."""

    shape: tuple[int, ...]
    width: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.width


@dataclass(frozen=True)
class OperatorCall:
    """The recorded arguments of one operator.

    Attributes:
        inputs: tensors of each argument: one, several for a list, none for other types.
        values: value of each argument as text, empty if not recorded.
        recorded_flops: operations, if the recorder gives them.
        recorded_bytes: bytes moved, if the recorder gives them.
    """

    inputs: tuple[tuple[Tensor, ...], ...]
    values: tuple[str, ...]
    recorded_flops: float | None = None
    recorded_bytes: float | None = None

    def tensor(self, place: int) -> Tensor | None:
        """The tensor argument at a position, None if there is none."""
        found = self.inputs[place] if place < len(self.inputs) else ()
        return found[0] if len(found) == 1 else None

    def numbers(self, place: int) -> list[int] | None:
        """The integer-list argument at a position, None if it is not one."""
        try:
            value = json.loads(self.values[place].lower())
        except (IndexError, ValueError):
            return None
        return [int(number) for number in value] if isinstance(value, list) else None

    def is_true(self, place: int) -> bool:
        """Whether the argument at a position is known to be true."""
        return self.values[place : place + 1] == ("True",)

    @property
    def width(self) -> int:
        """Bytes per element of a product's operands, 0 if unknown.

        The second argument of every product is an operand; the first may be a bias.
        """
        second = self.tensor(1)
        return second.width if second else 0


def call_of(trace: Trace, event: int) -> OperatorCall:
    """The arguments of an operator call; without inputs if shapes were not recorded."""
    return read_call(trace.event_arguments(event))


def read_call(arguments: Mapping[str, Any]) -> OperatorCall:
    """A call from an event's arguments.

    Source: Kineto's trace format, `Input Dims`, `Input type` and `Concrete Inputs`; inductor,
    `runtime/triton_heuristics.py`, `kernel_flop` and `kernel_num_gb`.
    """
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    values = arguments.get("Concrete Inputs")
    flops, size_gb = (_positive(arguments.get(key)) for key in ("kernel_flop", "kernel_num_gb"))
    recorded = flops, None if size_gb is None else size_gb * 1e9
    if not isinstance(dims, list) or not isinstance(types, list):
        return OperatorCall((), (), *recorded)
    inputs = tuple(_tensors(shape, str(kind)) for shape, kind in zip(dims, types, strict=False))
    texts = tuple(map(str, values)) if isinstance(values, list) else ()
    return OperatorCall(inputs, texts, *recorded)


def _positive(value: Any) -> float | None:
    """A number above 0; inductor writes 0 for unknown values."""
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _tensors(dims: Any, kind: str) -> tuple[Tensor, ...]:
    if not isinstance(dims, list):
        return ()
    if dims and all(isinstance(shape, list) for shape in dims):
        return tuple(tensor for shape in dims for tensor in _tensors(shape, kind))
    width = _BYTES.get(kind.removeprefix("c10::").lower(), 0)
    is_tensor = width > 0 or (kind == "TensorList" and bool(dims))
    if not is_tensor or not all(isinstance(size, int) for size in dims):
        return ()
    return (Tensor(tuple(dims), width or 4),)
