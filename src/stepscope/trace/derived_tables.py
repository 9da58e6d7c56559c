"""Tables that are computed for a query that names them, since most queries do not."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from stepscope.trace.trace import Trace

# The tables, and the function that fills them: by its name, since it is in a package that builds
# on this one.
_FILLED_BY = (
    (("findings", "evidence"), "stepscope.analyze", "fill_findings"),
    (("operations",), "stepscope.roofline", "with_operations"),
    (("contexts", "context_metrics"), "stepscope.contexts", "fill_contexts"),
)


def with_derived_tables(trace: Trace, names: Iterable[str]) -> Trace:
    """The trace with the tables of some names computed, unless they have rows already.

    A trace without steps and without contexts has no findings.
    """
    wanted = {name.lower() for name in names}
    if not len(trace["steps"]) and not len(trace["contexts"]):
        wanted -= {"findings", "evidence"}
    for tables, module, function in _FILLED_BY:
        if wanted.intersection(tables) and not any(len(trace[name]) for name in tables):
            trace = getattr(import_module(module), function)(trace)
    return trace
