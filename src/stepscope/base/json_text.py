"""Values as JSON: also those that nest hundreds of levels, or hold names that are not UTF-8."""

import sys
from threading import Lock, Thread, stack_size
from typing import Any

import msgspec

_DEEP = 100_000  # levels; chosen: more than any model nests
_STACK_BYTES = 256 << 20  # 2.6 kB for each level
_limits = Lock()  # the limit of recursion and the size of stacks are the whole process's


def json_bytes(value: Any, indent: int | None = None) -> bytes:
    r"""JSON in UTF-8; NaN and infinity become null, bytes of names that are not UTF-8 `\udcff`."""
    try:
        return _encoded(value, indent)
    except RecursionError:
        return _encoded_deep(value, indent)
    except UnicodeEncodeError:  # the name of a file can be any bytes
        return _encoded(_escaped(msgspec.to_builtins(value)), indent)


def _encoded(value: Any, indent: int | None) -> bytes:
    text = msgspec.json.encode(value, enc_hook=lambda scalar: scalar.item())
    return text if indent is None else msgspec.json.format(text, indent=indent)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(key): _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def _encoded_deep(value: Any, indent: int | None) -> bytes:
    """The same for what nests hundreds of levels, in a thread with room for them."""
    texts: list[bytes] = []
    thread = Thread(target=lambda: texts.append(_encoded(value, indent)))
    with _limits:
        usual_levels, usual_size = sys.getrecursionlimit(), stack_size(_STACK_BYTES)
        try:
            sys.setrecursionlimit(_DEEP)
            thread.start()
            thread.join()
        finally:
            stack_size(usual_size)
            sys.setrecursionlimit(usual_levels)
    if not texts:
        raise RecursionError("the answer nests too deeply to be written as JSON")
    return texts[0]
