"""Profiles of JAX in which nothing says what is forward, backward or optimizer.

XLA of JAX before 0.8 records no scopes of what runs on a CPU, or no operations of most programs. Or
its scopes show the transformation of a function, as in `transpose(jvp(Dense))`, only around a named
scope: plain functions look as if nothing was differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.annotate.names.compiled_calls import is_compiled_call
from stepscope.annotate.names.named_scopes import scope_of
from stepscope.annotate.names.range_names import CODE
from stepscope.arrays import Codes8
from stepscope.trace.trace import Trace

_OLD = "/jit(main)/"
_FEW = 0.5  # traced operations per call of a compiled function
_MESSAGE = (
    "the profile does not say what compiled operations were traced from, as with JAX before 0.8 "
    "on a CPU: passes and modules are unknown, and compiled work is shown as other"
)
_JSON = "trace events"
_MESSAGE_OF_JSON = (
    "JAX's profile as JSON lacks its compiled programs: passes and modules are unknown, and "
    "compiled work is shown as other; open the .xplane.pb that JAX wrote next to it"
)


def passes_are_unknown(trace: Trace, stage: Codes8) -> bool:
    """Whether compiled functions are called, but scopes say little, and nothing is backward.

    Args:
        trace: a trace with nested events.
        stage: of each event as far as it is known, shape (events,).
    """
    events = trace.events
    calls = int(events.text("name").where(is_compiled_call).sum())
    traced = int(((events["scope"] >= 0) | (events["origin"] >= 0)).sum())
    unknown = traced < _FEW * calls or hides_transformations(events.text("scope").values)
    return unknown and not (stage == CODE["backward"]).any()


def hides_transformations(scopes: Sequence[str | None]) -> bool:
    """Whether scopes are as JAX before 0.8 writes them, and none has a name to be transformed.

    Example:
        >>> hides_transformations(["jit(step)/jit(main)/dot_general"])
        True
        >>> hides_transformations(["jit(step)/dot_general", "jit(step)/jit(main)/jvp(Net)/add"])
        False
    """
    old = [scope_of(scope) for scope in scopes if scope and _OLD in scope]
    return bool(old) and not any(scope.stage or scope.modules for scope in old)


def warn_unknown_passes(trace: Trace) -> Trace:
    """Warn if the stages of compiled work are unknown."""
    if not passes_are_unknown(trace, trace.events["stage"]):
        return trace
    message = _MESSAGE_OF_JSON if trace.metadata.format == _JSON else _MESSAGE
    return trace.with_warnings([("unknown_passes", message, 1)])
