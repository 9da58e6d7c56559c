"""Clocks, system calls and built-in functions as Python has them, also where the program replaced them.

Imported before the program runs. The modules are copies that no other module sees: tools that freeze
time replace functions in every loaded module, and gevent closes files when its loop runs.
"""

import builtins
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    import select
    import signal
    import time
else:

    def _copy(name):
        copy = ModuleType(name)
        copy.__dict__.update(import_module(name).__dict__)
        return copy

    os, select, signal, time = map(_copy, ("os", "select", "signal", "time"))

__all__ = ["OwnBuiltins", "os", "select", "signal", "time"]
_OURS = dict(builtins.__dict__)


class OwnBuiltins:
    """While this is entered, built-in functions are Python's own; it calls none that may be replaced."""

    def __enter__(self) -> None:
        there = builtins.__dict__
        self._theirs: dict[str, Any] = {
            name: there[name] for name in _OURS if name in there and there[name] is not _OURS[name]
        }
        self._missing = [name for name in _OURS if name not in there]
        there.update(_OURS)

    def __exit__(self, *error: object) -> None:
        for name in self._missing:
            del builtins.__dict__[name]
        builtins.__dict__.update(self._theirs)
