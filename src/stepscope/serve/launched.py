"""The answer about an operation's launch, its device work, and its partner in the other pass."""

from __future__ import annotations

from typing import Any

from stepscope.serve.instances import longest_of
from stepscope.serve.opened import OpenTrace
from stepscope.serve.subject import Subject, known
from stepscope.serve.tables import kernel_configuration
from stepscope.timeline.names import short_name


def launch_of(opened: OpenTrace, event: int | None) -> dict[str, Any] | None:
    """The call that started a piece of device work, and how much later it began."""
    index = opened.timeline.index
    if event is None or index.launch[event] < 0:
        return None
    call = int(index.launch[event])
    delay = int(index.start[event] - index.start[call])
    return {**_reference(opened, call), "delay_ns": delay}


def device_work_of(opened: OpenTrace, subject: Subject) -> dict[str, Any]:
    """The device work launched in it, what takes longest first."""
    index, raw = opened.timeline.index, subject.raw
    work = raw[index.on_device[raw]]
    if subject.event is not None and index.on_device[subject.event]:
        work = work[:0]
    longest = longest_of(work, index.duration[work])
    return {"count": len(work), "rows": [_work(opened, event) for event in longest.tolist()]}


def _work(opened: OpenTrace, event: int) -> dict[str, Any]:
    index, tracks = opened.timeline.index, opened.trace["tracks"]
    call = int(index.launch[event])
    return {
        **_reference(opened, event),
        "full_name": opened.trace.events.text("name")[event] or "",
        "stream": known(tracks["stream"], int(index.track[event])),
        "start_ns": int(index.start[event]),
        "duration_ns": int(index.duration[event]),
        "launch": call,
        "delay_ns": int(index.start[event] - index.start[call]),
    }


def kernel_of(opened: OpenTrace, subject: Subject) -> dict[str, Any] | None:
    """How the kernel was launched that the operation is, or the only one that it launched."""
    index, raw = opened.timeline.index, subject.raw
    work = raw[index.on_device[raw]]
    kernels = work[opened.trace.events.text("category").take(work).mask("kernel")]
    return kernel_configuration(opened, int(kernels[0])) if len(kernels) == 1 else None


def partner(opened: OpenTrace, event: int) -> dict[str, Any] | None:
    """The event in the other pass, None for -1."""
    return _reference(opened, event) if event >= 0 else None


def _reference(opened: OpenTrace, event: int) -> dict[str, Any]:
    return {"event": event, "name": short_name(opened.trace.events.text("name")[event] or "")}
