"""Calls of compiled functions, which JAX marks on the calling thread: `PjitFunction(update)`."""

from __future__ import annotations

import re

CALL = re.compile(r"^PjitFunction\((.*)\)$", re.DOTALL)


def is_compiled_call(name: str) -> bool:
    """Whether an event of this name is the call of a compiled function.

    Example:
        >>> is_compiled_call("PjitFunction(update)")
        True
    """
    return CALL.match(name) is not None


def called_function(name: str) -> str:
    """The function that a call calls; a name that is no call is returned as it is.

    Example:
        >>> called_function("PjitFunction(update)")
        'update'
    """
    return CALL.sub(r"\1", name)
