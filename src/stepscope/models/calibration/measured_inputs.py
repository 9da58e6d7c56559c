"""Inputs of what is measured: calls of operators as in the trace, and memory that is in no cache.

Imports torch; only for the measuring process."""

import ast
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, cycle
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], object]
_SEVERAL = 2  # dimensions
_MOST_KEPT = 2  # inputs that stay in FP32 where others do not; chosen: each more is many more calls
_MIXED = ("gru", "gru_cell", "lstm_cell")  # of torch.autocast's operators on a CPU
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "c10::BFloat16": torch.bfloat16,
    "long int": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
    "unsigned char": torch.uint8,
}


def prepare(signature: str, *, half: bool) -> Call | None:
    """A function that calls the operator, or None if the call is not possible.

    Args:
        half: convert FP32 inputs to bfloat16: all of them or, if the operator rejects that, as many
            as it takes. It rejects some for weights of a normalization, and for an attention's
            logarithms of sums, which stay in FP32 under autocast, too. What is composed of products
            and a state in FP32 runs under autocast as it is.
    """
    floats, wide = _floats(signature)
    on_cpu = torch.empty(0).device.type == "cpu"  # where tensors are made now
    if half and on_cpu and json.loads(signature)[0] in _MIXED:
        return _autocasted(_call(signature, frozenset()))
    for narrow in _narrowed(floats, wide) if half else [frozenset[int]()]:
        try:
            call = _call(signature, narrow)
            call()
        except Exception:  # any reason of the operator
            continue
        return call
    return None


def _autocasted(call: Call) -> Call:
    def run() -> object:
        with torch.autocast("cpu", torch.bfloat16):
            return call()

    return run


def _floats(signature: str) -> tuple[frozenset[int], frozenset[int]]:
    """The inputs that have FP32 values, and those of them that have several dimensions."""
    _, dims, _, types, _ = json.loads(signature)
    floats = frozenset(place for place, kind in enumerate(types) if kind in ("float", "TensorList"))
    return floats, frozenset(n for n in floats if types[n] == "TensorList" or len(dims[n]) >= _SEVERAL)


def _narrowed(floats: frozenset[int], wide: frozenset[int]) -> Iterator[frozenset[int]]:
    """Which inputs could be in 16 bits, the likelier ones first."""
    yield floats
    yield wide
    for kept in range(1, min(_MOST_KEPT, len(floats) - 1) + 1):
        yield from (floats - set(left) for left in combinations(sorted(floats, reverse=True), kept))


def _call(signature: str, narrow: frozenset[int]) -> Call:
    name, dims, strides, types, values = json.loads(signature)
    packet = getattr(torch.ops.aten, name)
    given = zip(dims, strides, types, values, strict=True)
    inputs = [_input(*value, half=place in narrow) for place, value in enumerate(given)]
    schema = _schema(packet, len(inputs))
    places, names = [], {}
    for argument, recorded in zip(schema, inputs, strict=True):
        # Strings are not recorded, like None; the default is close enough.
        value = argument.default_value if recorded is None else recorded
        if argument.kwarg_only:
            names[argument.name] = value
        else:
            places.append(value)
    return lambda: packet(*places, **names)


def _schema(packet: Any, count: int) -> list[Any]:
    """The arguments of the overload with this many arguments and no `out` argument."""
    schemas = (getattr(packet, name)._schema.arguments for name in packet.overloads())
    return next(s for s in schemas if len(s) == count and not any(arg.is_out for arg in s))


def _input(dims: Any, strides: Any, kind: str, value: str, *, half: bool) -> Any:
    if kind in _DTYPES:
        return _tensor(dims, strides, _DTYPES[kind], half)
    if kind == "TensorList":
        return [_tensor(d, s, torch.float32, half) for d, s in zip(dims, strides, strict=True)]
    if value.strip("-") in ("inf", "nan"):  # as masks are filled with
        return float(value)
    return ast.literal_eval(value) if value else None


def _tensor(dims: list[int], strides: list[int], dtype: torch.dtype, half: bool) -> torch.Tensor:
    """A tensor with values that are valid for any function: FP32 from 0.1 to 0.9, else 0."""
    elements = 1 + sum((d - 1) * s for d, s in zip(dims, strides, strict=True))
    storage = torch.zeros(max(elements if math.prod(dims) else 0, 0), dtype=dtype)
    if dtype.is_floating_point:
        storage.uniform_(0.1, 0.9)
    if half and dtype == torch.float32:
        storage = storage.bfloat16()
    return storage.as_strided(dims, strides)


_BYTES = 1 << 28  # several times what caches keep for one process
_FLOAT = 4  # bytes of an FP32 value
_PARTS = 64  # more than a measurement has calls


def cold_arrays(count: int) -> list[Tensor]:
    """Float arrays of equal length that together are larger than caches."""
    return [torch.rand(_BYTES // _FLOAT // count) for _ in range(count)]


def parts_in_turn(arrays: Sequence[Tensor], elements: int) -> Iterator[tuple[Tensor, ...]]:
    """Parts of the arrays at the same place, without end; one comes again only after all others."""
    length = len(arrays[0])
    apart = max(1, length // elements // _PARTS) * elements
    starts = range(0, length - elements + 1, apart)
    return cycle([tuple(array[start : start + elements] for array in arrays) for start in starts])
