"""Loads the compiled library, where it was built."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.compiled.build import LIBRARY, fingerprint

VARIABLE = "STEPSCOPE_COMPILED"  # "off" does everything in Python
Function = Callable[..., int]


@cache
def function(name: str, library: Path = LIBRARY) -> Function | None:
    """A function of the library; None where it was not built from these sources, or is off.

    It runs without the interpreter's lock, so threads may call it at once. Arguments are integers,
    bytes, and contiguous NumPy arrays of the type that the C++ expects; nothing checks that. It
    returns an integer.
    """
    if os.environ.get(VARIABLE, "").lower() == "off":
        return None
    try:
        loaded = ctypes.CDLL(str(library))
        loaded.stepscope_fingerprint.restype = ctypes.c_uint32
        if loaded.stepscope_fingerprint() != fingerprint():
            return None
        raw = getattr(loaded, name)
    except (OSError, AttributeError):
        return None
    return lambda *arguments: int(raw(*map(_argument, arguments)))


def _argument(value: int | bytes | NDArray[Any]) -> Any:
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value)
