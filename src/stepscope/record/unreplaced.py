"""Clocks and built-in functions as Python has them, also where the program has replaced them.

Imported before the program runs. `time` is a copy of the module that no other module sees: tools that
freeze time replace its functions in every loaded module.
"""

import builtins
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import time
else:
    import time as _of_all

    time = ModuleType("time")
    time.__dict__.update(_of_all.__dict__)
    del _of_all

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
