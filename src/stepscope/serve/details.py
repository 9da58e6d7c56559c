"""The answer about one operation: what it costs, its instances, its launch, where it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.serve.instances import instances_of
from stepscope.serve.launched import device_work_of, kernel_of, launch_of, partner
from stepscope.serve.opened import OpenTrace
from stepscope.serve.panes import panes
from stepscope.serve.query import Query
from stepscope.serve.subject import Subject, known, module_of, step_of, subject_of
from stepscope.timeline import Operation
from stepscope.timeline.measure import Costs
from stepscope.timeline.places import Place, frames_around, module_places

_MOST_PLACES = 30


def details(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """All that is known of an operation."""
    subject = subject_of(opened, query)
    return {
        "path": subject.path,
        "level": subject.path.rpartition("/")[0],
        **_identity(opened, subject),
        **_costs(subject.costs),
        "arguments": _arguments(opened, subject.event),
        "instances": instances_of(opened, subject),
        "launch": launch_of(opened, subject.event),
        "device_work": device_work_of(opened, subject),
        "kernel": kernel_of(opened, subject),
        "forward": partner(opened, subject.forward),
        "backward": partner(opened, subject.backward),
        "source": [asdict(place) for place in _places(opened, subject)],
        "selects": panes(opened, subject.raw),
    }


def _identity(opened: OpenTrace, subject: Subject) -> dict[str, Any]:
    operation, events, event = subject.operation, opened.trace.events, subject.event
    first = int(operation.rows[0]) if len(operation.rows) else None
    recorded = None if event is None else events.text("name")[event]
    return {
        "name": operation.name,
        "full_name": recorded or operation.name,
        "kind": operation.kind,
        "event": event,
        "category": None if event is None else events.text("category")[event],
        **step_of(opened, subject),
        "stage": _stage(opened, operation, first),
        "track": _track(opened, operation.track),
        "module": _module(opened, module_of(opened, operation)),
    }


def _stage(opened: OpenTrace, operation: Operation, first: int | None) -> str | None:
    if operation.kind == "stage":
        return operation.name
    if operation.kind == "step" or first is None:
        return None
    return opened.trace.events.text("stage")[first]


def _track(opened: OpenTrace, track: int) -> dict[str, Any] | None:
    if track < 0:
        return None
    table = opened.trace["tracks"]
    return {
        "id": track,
        "kind": table.text("kind")[track],
        "name": table.text("name")[track],
        "device": known(table["device"], track),
        "stream": known(table["stream"], track),
    }


def _module(opened: OpenTrace, module: int) -> dict[str, Any] | None:
    if module < 0:
        return None
    table = opened.trace["modules"]
    return {"id": module, "path": table.text("path")[module], "class": table.text("class")[module]}


def _costs(costs: Costs) -> dict[str, Any]:
    def told(column: NDArray[np.int64]) -> int | None:
        return known(column, 0)

    start = told(costs.start_ns)
    return {
        "start_ns": told(costs.device_start_ns) if start is None else start,
        "cpu_ns": told(costs.cpu_ns),
        "self_ns": told(costs.self_ns),
        "device_ns": told(costs.device_ns),
        "device_start_ns": told(costs.device_start_ns),
        "device_end_ns": told(costs.device_end_ns),
        "recompute_ns": told(costs.recompute_ns),
        "bound_by": "device" if costs.bound_by_device[0] else "cpu",
        "events": told(costs.events),
    }


def _arguments(opened: OpenTrace, event: int | None) -> dict[str, Any]:
    return {} if event is None else opened.trace.event_arguments(event)


def _places(opened: OpenTrace, subject: Subject) -> Iterable[Place]:
    """Calls and classes of modules, then recorded frames, each from the innermost outwards."""
    operation, index = subject.operation, opened.timeline.index
    if operation.kind in ("step", "stage") or not len(operation.rows):
        return []
    first = int(operation.rows[0])
    frames = frames_around(index, first)
    if not frames and subject.forward >= 0:
        frames = frames_around(index, subject.forward)  # autograd has no frames of its own
    found, module = [], max(module_of(opened, operation), operation.context)
    parents = opened.trace["modules"]["parent"]
    while module >= 0:
        found += module_places(index, module)
        module = int(parents[module])
    return [*found, *frames][:_MOST_PLACES]
