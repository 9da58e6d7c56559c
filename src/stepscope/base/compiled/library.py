"""Loads the compiled library."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.base.compiled.build import LIBRARY, fingerprint
from stepscope.errors import StepscopeError

Function = Callable[..., int]


@cache
def function(name: str) -> Function:
    """A function of the library.

    It runs without the interpreter's lock, so threads may call it at once. Arguments are integers,
    bytes, and contiguous NumPy arrays of the type that the C++ expects; nothing checks that. It
    returns an integer. Raises StepscopeError if the library was not built, or of other sources.
    """
    raw = getattr(_library(), name)
    return lambda *arguments: int(raw(*map(_argument, arguments)))


@cache
def _library() -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
        loaded.stepscope_fingerprint.restype = ctypes.c_uint32
        is_current = loaded.stepscope_fingerprint() == fingerprint()
    except (OSError, AttributeError) as error:
        raise _unusable("is missing or damaged") from error
    if not is_current:
        raise _unusable("was built from other sources")
    return loaded


def _unusable(reason: str) -> StepscopeError:
    return StepscopeError(
        f"the compiled library of stepscope {reason} ({LIBRARY}); install a C++ compiler and run "
        "`pip install --force-reinstall --no-deps stepscope`, or in a checkout "
        "`python src/stepscope/base/compiled/build.py`"
    )


def _argument(value: int | bytes | NDArray[Any]) -> Any:
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else ctypes.c_int64(value)
