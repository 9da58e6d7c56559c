"""The compiled functions that a program calls, by name and definition."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

_OF_JAX = str(Path(jax.__file__).parent) + os.sep


class FunctionSite(NamedTuple):
    """A function and where it is defined; `file` is empty for functions of JAX."""

    name: str
    file: str = ""
    line: int = 0


class JitFunctions:
    """Describes compiled functions, and keeps none of them alive.

    Args:
        died: called with the address of a described function that is gone.
    """

    def __init__(self, died: Callable[[int], object]) -> None:
        self._died = died
        self._living: dict[int, weakref.ref[Any]] = {}

    def describe(self, function: Any) -> tuple[str, str, int]:
        """Name, file and line of a compiled function, as its contexts are named."""
        address = id(function)
        self._living[address] = weakref.ref(function, self._forgets(address))
        site = site_of(function)
        return f"jit({site.name})", site.file, site.line

    def _forgets(self, address: int) -> Callable[[object], None]:
        owner = weakref.ref(self)

        def forget(reference: object) -> None:
            functions = owner()
            if functions is not None and functions._living.get(address) is reference:
                del functions._living[address]
                functions._died(address)

        return forget


def site_of(function: Any) -> FunctionSite:
    """The name and definition of what a compiled function was made from.

    Example:
        >>> site_of(jax.jit(max)).name
        'max'
    """
    name = getattr(function, "__qualname__", None) or "compiled"
    short = name.rpartition("<locals>.")[2]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename.startswith(_OF_JAX):
        return FunctionSite(short)
    return FunctionSite(short, code.co_filename, code.co_firstlineno)
