"""Calls of compiled functions, which JAX marks on the calling thread: `PjitFunction(update)`."""

from __future__ import annotations

import re

CALL = re.compile(r"^PjitFunction\((.*)\)$", re.DOTALL)
_GRADIENT = "stepscope.gradient"  # as our recorder marks it
_WAIT = re.compile(r"BlockHostUntilReady|Buffer::Await$|^wait: |^ArrayImpl\.copy_to_host_async$")


def is_compiled_call(name: str) -> bool:
    """Whether an event of this name is the call of a compiled function.

    Example:
        >>> is_compiled_call("PjitFunction(update)")
        True
    """
    return CALL.match(name) is not None


def is_training_call(name: str) -> bool:
    """Whether it is a call that can begin a step: compiled, or a gradient outside of `jax.jit`.

    Example:
        >>> is_training_call("stepscope.gradient")
        True
    """
    return is_compiled_call(name) or name == _GRADIENT


def called_function(name: str) -> str:
    """The function that a call calls; a name that is no call is returned as it is.

    Example:
        >>> called_function("PjitFunction(update)")
        'update'
    """
    return CALL.sub(r"\1", name)


def is_wait(name: str) -> bool:
    """Whether the program waits for a result of XLA, or reads it, in an event of this name.

    Example:
        >>> is_wait("CommonPjRtBuffer::Await"), is_wait("wait: float(x)")
        (True, True)
    """
    return _WAIT.search(name) is not None
