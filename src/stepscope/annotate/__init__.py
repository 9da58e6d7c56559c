"""From recorded facts to derived ones: one file per fact, each a function Trace -> Trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.annotate.backward import link_backward
from stepscope.annotate.collectives import mark_communication
from stepscope.annotate.idle import find_idle
from stepscope.annotate.kinds import classify_kernels
from stepscope.annotate.launches import link_launches
from stepscope.annotate.modules import attribute_modules
from stepscope.annotate.runs import find_runs
from stepscope.annotate.stages import assign_stages
from stepscope.annotate.steps import find_steps
from stepscope.trace.trace import Trace

__all__ = ["annotate"]


def annotate(trace: Trace, model: Mapping[str, Any] | None = None) -> Trace:
    """Derive steps, stages, modules, launches, kernel kinds and idle time.

    Args:
        trace: a trace as a reader made it.
        model: a model tree `{"name", "class", "children": [...]}`, used where the file names no
            module itself.

    Returns:
        The trace with all its tables filled.
    """
    if model is not None and not trace.metadata.model:
        trace = trace.with_metadata(model=model)
    if not len(trace.events):
        return trace
    trace = link_launches(trace)
    trace = mark_communication(trace)
    trace = link_backward(trace)
    trace = find_steps(trace)
    trace = assign_stages(trace)
    trace = classify_kernels(trace)
    trace = attribute_modules(trace)
    trace = find_runs(trace)
    return find_idle(trace)
