"""Which calls of operators have equal arguments, as far as their work depends on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder

from stepscope.arrays import Ids, IntArray
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function

_NOTHING = Raw(b"")


class _WorkArguments(Struct, gc=False):
    """The arguments that determine the work of a call; the others differ from call to call."""

    dims: Raw = field(name="Input Dims", default=_NOTHING)
    types: Raw = field(name="Input type", default=_NOTHING)
    values: Raw = field(name="Concrete Inputs", default=_NOTHING)
    flops: Raw = field(name="kernel_flop", default=_NOTHING)
    size: Raw = field(name="kernel_num_gb", default=_NOTHING)


_DECODER = Decoder(_WorkArguments)
Key = tuple[object, ...]


def key_of(name: int, text: bytes) -> Key | None:
    """What the work of a call depends on; None if its arguments are no JSON object."""
    try:
        given = _DECODER.decode(text)
    except MsgspecError:
        return None
    if not (given.dims or given.flops or given.size):
        return (name,)
    values = (given.dims, given.types, given.values, given.flops, given.size)
    return (name, *map(bytes, values))


def first_equal_calls(text: bytes, starts: Ids, ends: Ids, names: IntArray) -> Ids:
    """The first call whose name and arguments are equal to those of each call.

    Args:
        text: the JSON texts of their arguments.
        starts, ends: of the text of each call in `text`, equal for none, int64, shape (n,).
        names: a number of the name of each call, shape (n,).

    Returns:
        int64, shape (n,), the number of a call.
    """
    found = compiled_equal_calls(text, starts, ends, names)
    return equal_calls_in_python(text, starts, ends, names) if found is None else found


def compiled_equal_calls(
    text: bytes, starts: Ids, ends: Ids, names: IntArray, library: Path = LIBRARY
) -> Ids | None:
    """The same by `native/equal_calls.cpp`, None where that is missing or a text is not plain."""
    group = function("stepscope_equal_calls", library)
    first = np.empty(len(starts), np.int64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (starts, ends, names))
    return first if group and group(text, len(starts), *columns, first) else None


def equal_calls_in_python(text: bytes, starts: Ids, ends: Ids, names: IntArray) -> Ids:
    """The same as `native/equal_calls.cpp`."""
    known: dict[Key, int] = {}
    first = []
    calls = zip(starts.tolist(), ends.tolist(), names.tolist(), strict=True)
    for row, (start, end, name) in enumerate(calls):
        key = key_of(name, text[start:end] or b"{}")
        first.append(row if key is None else known.setdefault(key, row))
    return np.array(first, np.int64)
