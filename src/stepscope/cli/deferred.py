"""Calls a function after the command line has been left, so that no frame of click is below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Deferred(BaseException):
    """Leaves the command line; `action` is called afterwards."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action


def call(command: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Call a command, and then what it deferred."""
    try:
        command(*args, **options)
        return
    except Deferred as deferred:
        action = deferred.action
    action()
