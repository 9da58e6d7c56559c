"""Derive facts from a recorded trace: one file per fact, each a function Trace -> Trace."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from stepscope.base.parallel import in_threads
from stepscope.facts.annotate.device.collectives import mark_communication
from stepscope.facts.annotate.device.idle import find_idle
from stepscope.facts.annotate.device.kernel_kinds import classify_kernels
from stepscope.facts.annotate.jax.device_runs import link_programs
from stepscope.facts.annotate.links.backward import link_backward
from stepscope.facts.annotate.links.cuda_graphs import (
    captures_of,
    link_replays,
    recorded_captures,
    replayed,
    with_captures,
)
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.modules.modules import attribute_modules
from stepscope.facts.annotate.stages.stage_runs import find_runs
from stepscope.facts.annotate.stages.stages import assign_stages
from stepscope.facts.annotate.steps.inference import find_iterations
from stepscope.facts.annotate.steps.ranges import step_ranges
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_MOST_DEVICES = 256  # of one process: NVL72 has 72; a number more is for tracks without a device

__all__ = ["annotate", "find_stages"]


def annotate(trace: Trace, model: Mapping[str, Any] | None = None) -> Trace:
    """Derive steps, stages, modules, launches, kernel kinds and idle time: all tables of a trace as read.

    Args:
        model: a model tree `{"name", "class", "children": [...]}`, used if the file names no modules.
    """
    if model is not None and not trace.metadata.model:
        trace = trace.with_metadata(model=model)
    if not len(trace.events):
        return trace
    trace = _with_few_devices(_with_ranges(trace))
    annotated = _by_name_and_by_time(link_replays(_with_stages(trace)))
    if captures_of(trace).graphs or not replayed(annotated).any():
        return annotated
    captures = recorded_captures(annotated)  # only annotated events show the modules of captures
    return annotate(with_captures(trace, captures)) if captures.graphs else annotated


def _with_ranges(trace: Trace) -> Trace:
    """The trace with events of no known category as ranges, if steps are among them: a user's own marks."""
    if not trace.events.text("category").mask("other").all():
        return trace
    marked = trace.with_events(category=Text.constant("annotation", len(trace.events)))
    return marked if len(step_ranges(marked)) else trace


def _with_few_devices(trace: Trace) -> Trace:
    """The trace with the devices from the 256th on as one: facts take time for each of them."""
    tracks, memory = trace["tracks"], trace["memory"]
    numbers = distinct(tracks["device"][tracks["device"] >= 0])
    if len(numbers) > _MOST_DEVICES:
        device = np.minimum(tracks["device"], numbers[_MOST_DEVICES - 1])
        trace = _with_others(trace, tracks.with_columns(device=device), len(numbers))
    names = memory.text("device")
    if len(names.values) > _MOST_DEVICES:
        few = Text(np.minimum(names.codes, _MOST_DEVICES - 1), names.values[:_MOST_DEVICES])
        trace = _with_others(trace, memory.with_columns(device=few), len(names.values))
    return trace


def _with_others(trace: Trace, table: Table, count: int) -> Trace:
    others = count - _MOST_DEVICES + 1
    message = f"the file names {count:,} devices; the last {others:,} are taken for one"
    return trace.with_table(table).with_warnings([("many_devices", message, others)])


def find_stages(trace: Trace) -> Trace:
    """Derive launches, steps, stages and their runs alone: the tables `steps` and `stages`."""
    return find_runs(_with_stages(trace)) if len(trace.events) else trace


def _by_name_and_by_time(trace: Trace) -> Trace:
    """Kinds and modules of events, and runs of stages and idle time: neither needs the other."""
    ways = (classify_kernels, attribute_modules), (find_runs, find_idle)
    named, timed = in_threads(partial(_derived, trace), ways, len(trace.events))
    columns = {name: named.events.columns()[name] for name in ("kind", "module")}
    result = timed.with_events(**columns)
    for table in ("modules", "module_shares", "warnings"):  # what is timed adds no warnings
        result = result.with_table(named[table])
    return result


def _with_stages(trace: Trace) -> Trace:
    return _derived(
        trace,
        (
            link_launches,
            link_programs,
            mark_communication,
            link_backward,
            find_iterations,
            find_steps,
            assign_stages,
        ),
    )


def _derived(trace: Trace, facts: Iterable[Callable[[Trace], Trace]]) -> Trace:
    for fact in facts:
        trace = fact(trace)
    return trace
