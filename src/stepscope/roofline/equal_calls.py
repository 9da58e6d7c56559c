"""Which calls of operators have equal arguments, as far as some keys of these go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder

from stepscope.arrays import Ids, IntArray
from stepscope.compiled.build import LIBRARY
from stepscope.compiled.library import function
from stepscope.trace.arguments import Arguments
from stepscope.trace.sets import distinct

_NOTHING = Raw(b"")


class _WorkArguments(Struct, gc=False):
    """The arguments that determine the work of a call; the others differ from call to call."""

    dims: Raw = field(name="Input Dims", default=_NOTHING)
    flops: Raw = field(name="kernel_flop", default=_NOTHING)
    size: Raw = field(name="kernel_num_gb", default=_NOTHING)
    types: Raw = field(name="Input type", default=_NOTHING)
    values: Raw = field(name="Concrete Inputs", default=_NOTHING)


_DECODER = Decoder(_WorkArguments)
_MEMBERS = Decoder(dict[str, Raw])
_WORK_KEYS = tuple(_WorkArguments.__struct_encode_fields__)
_DECISIVE = 3  # without any of these, types and values say nothing of the work
Key = tuple[object, ...]


def key_of(name: int, text: bytes) -> Key | None:
    """What the work of a call depends on; None if its arguments are no JSON object."""
    try:
        given = _DECODER.decode(text)
    except MsgspecError:
        return None
    if not (given.dims or given.flops or given.size):
        return (name,)
    values = (given.dims, given.flops, given.size, given.types, given.values)
    return (name, *map(bytes, values))


def numbered_calls(
    arguments: Arguments,
    sources: IntArray,
    names: IntArray,
    number_of: Callable[[int, bytes], int],
    keys: tuple[str, ...] = _WORK_KEYS,
    decisive: int = _DECISIVE,
) -> Ids:
    """A number of each call, which a function is asked for once for equal calls of a block.

    Args:
        arguments: of the trace.
        sources: positions of the calls in the file, ascending, shape (n,).
        names: a number of the name of each, shape (n,).
        number_of: of a name and the JSON text of arguments.
        keys, decisive: as for `first_equal_calls`.

    Returns:
        int64, shape (n,).
    """
    parts = list(arguments.parts(sources))
    numbers = np.empty(len(sources), np.int64)
    without = slice(parts[0][1].start if parts else len(sources))
    numbers[without] = [number_of(name, b"{}") for name in names[without].tolist()]
    for block, part in parts:
        own, called = sources[part], names[part]
        first = first_equal_calls(block.text(), *block.spans(own), called, keys, decisive)
        rows = distinct(first)
        of_first = np.empty(len(first), np.int64)
        calls = zip(called[rows].tolist(), block.find_all(own[rows]), strict=True)
        of_first[rows] = [number_of(name, text) for name, text in calls]
        numbers[part] = of_first[first]
    return numbers


def first_equal_calls(
    text: bytes,
    starts: Ids,
    ends: Ids,
    names: IntArray,
    keys: tuple[str, ...] = _WORK_KEYS,
    decisive: int = _DECISIVE,
) -> Ids:
    """The first call whose name and arguments are equal to those of each call.

    Args:
        text: the JSON texts of their arguments.
        starts, ends: of the text of each call in `text`, equal for none, int64, shape (n,).
        names: a number of the name of each call, shape (n,).
        keys: of the arguments that count, by default those that determine the work of a call.
        decisive: where a call has none of so many first keys, the others do not count.

    Returns:
        int64, shape (n,), the number of a call.
    """
    found = compiled_equal_calls(text, starts, ends, names, keys, decisive)
    if found is None:
        return equal_calls_in_python(text, starts, ends, names, keys, decisive)
    return found


def compiled_equal_calls(
    text: bytes,
    starts: Ids,
    ends: Ids,
    names: IntArray,
    keys: tuple[str, ...] = _WORK_KEYS,
    decisive: int = _DECISIVE,
    library: Path = LIBRARY,
) -> Ids | None:
    """The same by `native/equal_calls.cpp`; None where that is missing, or JSON is not plain."""
    group = function("stepscope_equal_calls", library) if all(map(_is_plain, keys)) else None
    first = np.empty(len(starts), np.int64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (starts, ends, names))
    wanted = "\n".join(keys).encode()
    if not group or not group(text, len(starts), *columns, wanted, decisive, first):
        return None
    return first


def _is_plain(key: str) -> bool:
    """Whether JSON spells a key as it is."""
    return key.isprintable() and not {'"', "\\"} & {*key}


def equal_calls_in_python(
    text: bytes,
    starts: Ids,
    ends: Ids,
    names: IntArray,
    keys: tuple[str, ...] = _WORK_KEYS,
    decisive: int = _DECISIVE,
) -> Ids:
    """The same as `native/equal_calls.cpp`."""
    known: dict[Key, int] = {}
    first = []
    calls = zip(starts.tolist(), ends.tolist(), names.tolist(), strict=True)
    for row, (start, end, name) in enumerate(calls):
        try:
            given = _MEMBERS.decode(text[start:end] or b"{}")
        except (MsgspecError, RecursionError):
            first.append(row)
            continue
        values = [bytes(given.get(key, b"")) for key in keys]
        counted = values if any(values[:decisive]) else []
        first.append(known.setdefault((name, *counted), row))
    return np.array(first, np.int64)
