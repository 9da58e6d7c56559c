"""Clocks, system calls and other functions as Python has them, also where the program replaced them.

Imported before the program runs. The modules are copies that no other module sees: tools that freeze
time replace functions in every loaded module, and gevent closes files when its loop runs.
"""

import builtins
import io
import json
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

__all__ = ["OwnFunctions", "os", "select", "signal", "time"]
# What writing a file calls, by way of others: pathlib, zipfile, tempfile.
_MODULES = builtins, io, json, *map(import_module, ("os", "os.path", "time"))
_OURS = [(module.__dict__, dict(module.__dict__)) for module in _MODULES]


class OwnFunctions:
    """While this is entered, functions of these modules are Python's own; it calls none replaced."""

    def __enter__(self) -> None:
        self._theirs: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = []
        for there, ours in _OURS:
            changed = {name: there[name] for name in ours if name in there and there[name] is not ours[name]}
            self._theirs.append((there, changed, [name for name in ours if name not in there]))
            there.update(ours)

    def __exit__(self, *error: object) -> None:
        for there, changed, missing in self._theirs:
            for name in missing:
                del there[name]
            there.update(changed)
