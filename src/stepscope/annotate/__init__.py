"""Derive facts from a recorded trace: one file per fact, each a function Trace -> Trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from stepscope.annotate.device.collectives import mark_communication
from stepscope.annotate.device.idle import find_idle
from stepscope.annotate.device.kernel_kinds import classify_kernels
from stepscope.annotate.links.forward_of_backward import link_backward
from stepscope.annotate.links.launches import link_launches
from stepscope.annotate.modules.modules import attribute_modules
from stepscope.annotate.recording_cost.part_costs import why_unknown
from stepscope.annotate.recording_cost.recording_cost import without_recording_cost
from stepscope.annotate.stages.stage_runs import find_runs
from stepscope.annotate.stages.stages import assign_stages
from stepscope.annotate.steps.iterations import find_iterations
from stepscope.annotate.steps.steps import find_steps
from stepscope.parallel import in_threads
from stepscope.trace.trace import Trace

__all__ = ["annotate"]


def annotate(
    trace: Trace, model: Mapping[str, Any] | None = None, as_recorded: bool = False
) -> Trace:
    """Derive steps, stages, modules, launches, kernel kinds and idle time.

    Args:
        trace: a trace as read from a file.
        model: a model tree `{"name", "class", "children": [...]}`, used if the file names no
            modules.
        as_recorded: keep the recorded times of a capture instead of removing the cost of
            recording from them.

    Returns:
        The trace with all its tables filled.
    """
    if model is not None and not trace.metadata.model:
        trace = trace.with_metadata(model=model)
    if not len(trace.events):
        return trace
    staged = _staged(trace)
    if trace.metadata.capture and not as_recorded:
        staged = _corrected(trace, staged)
    return _by_name_and_by_time(staged)


def _by_name_and_by_time(trace: Trace) -> Trace:
    """Kinds and modules of events, and runs of stages and idle time: neither needs the other."""
    ways = (classify_kernels, attribute_modules), (find_runs, find_idle)
    named, timed = in_threads(partial(_derived, trace), ways, len(trace.events))
    columns = {name: named.events.columns()[name] for name in ("kind", "module")}
    result = timed.with_events(**columns)
    for table in ("modules", "module_shares", "warnings"):  # what is timed adds no warnings
        result = result.with_table(named[table])
    return result


def _derived(trace: Trace, facts: Iterable[Callable[[Trace], Trace]]) -> Trace:
    for fact in facts:
        trace = fact(trace)
    return trace


def _corrected(recorded: Trace, staged: Trace) -> Trace:
    """A capture with stages, without the cost of its recording where that is known."""
    if not len(staged["steps"]):
        return staged
    if why := why_unknown(staged):
        return staged.with_metadata(recording_cost={"unknown": why})
    return _staged(without_recording_cost(recorded, find_runs(staged)))


def _staged(trace: Trace) -> Trace:
    trace = link_launches(trace)
    trace = mark_communication(trace)
    trace = link_backward(trace)
    trace = find_iterations(trace)
    trace = find_steps(trace)
    return assign_stages(trace)
