"""Which calls of operators have equal arguments, as far as some keys of these go."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec import MsgspecError, Raw
from msgspec.json import Decoder

from stepscope.base.arrays import Ids, IntArray
from stepscope.base.compiled.library import function
from stepscope.trace.arguments import Arguments
from stepscope.trace.sets import distinct

_MEMBERS = Decoder(dict[str, Raw])
Key = tuple[object, ...]


class Counted(NamedTuple):
    """The arguments that count; the others differ from call to call."""

    keys: tuple[str, ...]  # of these arguments
    decisive: int  # where a call has none of so many first keys, the others do not count


# They determine the work of a call: without shapes or counts, types and values say nothing of it.
WORK = Counted(("Input Dims", "kernel_flop", "kernel_num_gb", "Input type", "Concrete Inputs"), 3)


def key_of(name: int, text: bytes, counted: Counted = WORK) -> Key | None:
    """Equal for calls with equal arguments; None if the arguments are no JSON object."""
    try:
        given = _MEMBERS.decode(text)
    except (MsgspecError, RecursionError):
        return None
    values = [bytes(given.get(key, b"")) for key in counted.keys]
    return (name, *values) if any(values[: counted.decisive]) else (name,)


def numbered_calls(
    arguments: Arguments,
    sources: IntArray,
    names: IntArray,
    number_of: Callable[[int, bytes], int],
    counted: Counted = WORK,
) -> Ids:
    """A number of each call, which a function is asked for once for equal calls of a block.

    Args:
        sources: positions of the calls in the file, ascending, shape (n,).
        names: a number of the name of each, shape (n,).
        number_of: of a name and the JSON text of arguments.
        counted: the arguments that count, by default those that determine the work of a call.
    """
    parts = list(arguments.parts(sources))
    numbers = np.empty(len(sources), np.int64)
    without = slice(parts[0][1].start if parts else len(sources))
    numbers[without] = [number_of(name, b"{}") for name in names[without].tolist()]
    for block, part in parts:
        own, called = sources[part], names[part]
        first = compiled_equal_calls(block.text(), *block.spans(own), called, counted)
        if first is None:  # then each call is asked for, which is slower
            first = np.arange(len(own))
        rows = distinct(first)
        of_first = np.empty(len(first), np.int64)
        calls = zip(called[rows].tolist(), block.find_all(own[rows]), strict=True)
        of_first[rows] = [number_of(name, text) for name, text in calls]
        numbers[part] = of_first[first]
    return numbers


def compiled_equal_calls(
    text: bytes, starts: Ids, ends: Ids, names: IntArray, counted: Counted = WORK
) -> Ids | None:
    """The first call whose name and arguments are equal to those of each call.

    Args:
        starts, ends: of the text of each call in `text`, equal for none, int64, shape (n,).
        counted: the arguments that count, by default those that determine the work of a call.

    Returns:
        int64, shape (n,), the number of a call; None if JSON is not plain.
    """
    is_plain = all(map(_is_plain, counted.keys))
    group = function("stepscope_equal_calls") if is_plain else None
    first = np.empty(len(starts), np.int64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (starts, ends, names))
    wanted = "\n".join(counted.keys).encode()
    if group is None or not group(text, len(starts), *columns, wanted, counted.decisive, first):
        return None
    return first


def _is_plain(key: str) -> bool:
    """Whether JSON spells a key as it is."""
    return key.isprintable() and not {'"', "\\"} & {*key}
