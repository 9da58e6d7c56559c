"""Profiles of JAX in which nothing says what is forward, backward or optimizer.

XLA of JAX before 0.8 records no scopes of what runs on a CPU, or no operations of most programs.
"""

from __future__ import annotations

from stepscope.annotate.names.compiled_calls import is_compiled_call
from stepscope.annotate.names.range_names import CODE
from stepscope.arrays import Codes8
from stepscope.trace.trace import Trace

_FEW = 0.5  # traced operations per call of a compiled function
_MESSAGE = (
    "the profile does not say what compiled operations were traced from, as with JAX before 0.8 "
    "on a CPU: passes and modules are unknown, and compiled work is shown as other"
)


def passes_are_unknown(trace: Trace, stage: Codes8) -> bool:
    """Whether compiled functions are called, but few operations have a scope, and none is backward.

    Args:
        trace: a trace with nested events.
        stage: of each event as far as it is known, shape (events,).
    """
    events = trace.events
    calls = int(events.text("name").where(is_compiled_call).sum())
    traced = int(((events["scope"] >= 0) | (events["origin"] >= 0)).sum())
    return traced < _FEW * calls and not (stage == CODE["backward"]).any()


def warn_unknown_passes(trace: Trace) -> Trace:
    """Warn if the stages of compiled work are unknown."""
    if not passes_are_unknown(trace, trace.events["stage"]):
        return trace
    return trace.with_warnings([("unknown_passes", _MESSAGE, 1)])
