"""Where a JAX program waits for results, and where it moves data: ranges of their own.

JAX returns from a call before its work is done. The program waits where it asks for a value:
explicitly (`block_until_ready`), or by using one (`float(x)`, `print(x)`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import jax

from stepscope.capture.patch import replace

_VALUE_USES = {
    "__float__": "float(x)", "__int__": "int(x)", "__bool__": "bool(x)", "__index__": "index",
    "__complex__": "complex(x)", "__array__": "np.asarray(x)", "__str__": "str(x)",
    "__repr__": "repr(x)", "__format__": "format(x)", "tolist": "x.tolist()",
    "tobytes": "x.tobytes()", "__iter__": "iteration", "__reduce__": "pickle",
}  # fmt: skip


class Ranges(Protocol):
    """Receives the begin and the end of each range."""

    def begin_whole(self, name: str) -> Any:
        """A range begins; what is returned identifies it."""

    def end(self, token: Any) -> None:
        """It ends."""


def watch_waits(
    ranges: Ranges, transfers: bool = True
) -> tuple[list[Callable[[], None]], list[str]]:
    """Put a range around each wait and each transfer.

    Args:
        ranges: gets them.
        transfers: whether transfers count.

    Returns:
        Functions that undo it, and the names of what this version of JAX lacks.
    """
    restore: list[Callable[[], None]] = []
    missing: list[str] = []
    places = [place for place in _places() if transfers or place[0].startswith("wait: ")]
    for name, holder, attribute in places:
        original = getattr(holder, attribute, None)
        if original is None:
            missing.append(name)
        elif isinstance(original, property):
            restore.append(replace(holder, attribute, _watched_value(ranges, original)))
        else:
            restore.append(replace(holder, attribute, _watched(ranges, name, original)))
    return restore, missing


def _places() -> list[tuple[str, Any, str]]:
    """The name of each context, and the attribute to watch for it."""
    arrays: Any = sys.modules.get("jax._src.array")
    array = getattr(arrays, "ArrayImpl", None)
    dispatch = sys.modules.get("jax._src.dispatch")
    has_lower = hasattr(dispatch, "_batched_device_put_impl")
    # below jnp.asarray too, where this version has it
    put = (dispatch, "_batched_device_put_impl") if has_lower else (jax, "device_put")
    return [
        ("wait: block_until_ready", jax, "block_until_ready"),
        ("wait: block_until_ready", array, "block_until_ready"),
        ("wait: effects_barrier", jax, "effects_barrier"),
        ("wait: values of arrays", array, "_value"),
        ("transfer: device_get", jax, "device_get"),
        ("transfer: device_put", *put),
    ]


def _watched(ranges: Ranges, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = ranges.begin_whole, ranges.end

    @functools.wraps(function, assigned=_named(function))
    def watched(*arguments: Any, **keywords: Any) -> Any:
        token = begin(name)
        try:
            return function(*arguments, **keywords)
        finally:
            end(token)

    return watched


def _named(function: Callable[..., Any]) -> list[str]:
    """The attributes that a wrapper can take over; methods in C++ may lack some."""
    names = ("__module__", "__name__", "__qualname__", "__doc__")
    return [name for name in names if isinstance(getattr(function, name, None), str)]


def _watched_value(ranges: Ranges, original: property) -> property:
    """The property that every conversion of an array reads; its value is kept once it is known."""
    begin, end, read = ranges.begin_whole, ranges.end, original.fget
    assert read

    def watched(array: Any) -> Any:
        if getattr(array, "_npy_value", None) is not None:
            return read(array)
        use = sys._getframe(1).f_code.co_name
        token = begin(f"wait: {_VALUE_USES.get(use, 'value')}")
        try:
            return read(array)
        finally:
            end(token)

    return property(watched, doc=original.__doc__)
