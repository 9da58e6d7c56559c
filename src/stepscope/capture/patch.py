"""Replaces a function of the program by one of ours, and restores it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


def replace(holder: Any, name: str, ours: Any) -> Callable[[], None]:
    """Set an attribute to `ours`.

    Returns:
        A function that restores the original, unless ours has been replaced meanwhile.
    """
    original = getattr(holder, name)
    setattr(holder, name, ours)

    def restore() -> None:
        if getattr(holder, name) is ours:
            setattr(holder, name, original)

    return restore


def shadow_builtin(module: ModuleType, name: str, ours: Any) -> Callable[[], None]:
    """Give a module a function of its own in place of a built-in one.

    Returns:
        A function that takes it away, unless the module has got another one meanwhile.
    """
    setattr(module, name, ours)

    def restore() -> None:
        if vars(module).get(name) is ours:
            delattr(module, name)

    return restore
