"""Replaces a function of the program by one of ours, and restores it."""

from __future__ import annotations

from collections.abc import Callable
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
