"""Gives a class's constructor an argument that the script does not give it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any


def with_arguments(cls: Any, arguments: Mapping[str, Any], seen: Callable[[Any], object]) -> None:
    """From now on instances of `cls` are made with `arguments`.

    Args:
        cls: the class; its subclasses get them through their call of its constructor.
        arguments: by name, in place of the script's own.
        seen: called with each instance once it is made.
    """
    import inspect

    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(arguments)
        original(*bound.args, **bound.kwargs)
        seen(self)

    cls.__init__ = make
