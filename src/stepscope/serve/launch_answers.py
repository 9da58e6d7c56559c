"""Part of an operation's details: its launch, its device work, its partner in the other pass."""

from __future__ import annotations

import msgspec

from stepscope.serve.instance_answers import longest_of
from stepscope.serve.selection import Selection, known
from stepscope.serve.table_answers import KernelLaunch, kernel_launch
from stepscope.serve.trace_view import TraceView


class EventLink(msgspec.Struct):
    """A raw event to go to.

    Attributes:
        event: its id.
        name: shortened.
    """

    event: int
    name: str


class LaunchLink(EventLink):
    """The call that launched a piece of device work.

    Attributes:
        event: its id.
        name: shortened.
        delay_ns: from the start of the call to the start of the work.
    """

    delay_ns: int


class WorkRow(EventLink):
    """A piece of device work.

    Attributes:
        event: its id.
        name: shortened.
        full_name: as recorded.
        launch: id of the call that launched it.
        delay_ns: from the start of that call to its start.
    """

    full_name: str
    device: int | None
    stream: int | None
    start_ns: int
    duration_ns: int
    launch: int
    delay_ns: int


class DeviceWork(msgspec.Struct):
    """The device work that an operation launched.

    Attributes:
        rows: the longest pieces, at most 50.
    """

    count: int
    rows: list[WorkRow]


def launch_of(view: TraceView, event: int | None) -> LaunchLink | None:
    """The call that launched a piece of device work."""
    index = view.timeline.index
    if event is None or index.launch[event] < 0:
        return None
    call = int(index.launch[event])
    link = link_to(view, call)
    return LaunchLink(link.event, link.name, int(index.start[event] - index.start[call]))


def device_work_of(view: TraceView, selection: Selection) -> DeviceWork:
    """The device work that an operation launched, the longest first."""
    index, raw = view.timeline.index, selection.raw
    work = raw[index.on_device[raw]]
    if selection.event is not None and index.on_device[selection.event]:
        work = work[:0]
    longest = longest_of(work, index.duration[work])
    return DeviceWork(len(work), [_work_row(view, event) for event in longest.tolist()])


def _work_row(view: TraceView, event: int) -> WorkRow:
    index, tracks = view.timeline.index, view.trace["tracks"]
    call, track, link = int(index.launch[event]), int(index.track[event]), link_to(view, event)
    return WorkRow(
        link.event,
        link.name,
        full_name=view.trace.events.text("name")[event] or "",
        device=known(tracks["device"], track),
        stream=known(tracks["stream"], track),
        start_ns=int(index.start[event]),
        duration_ns=int(index.duration[event]),
        launch=call,
        delay_ns=int(index.start[event] - index.start[call]),
    )


def kernel_of(view: TraceView, selection: Selection) -> KernelLaunch | None:
    """Launch configuration of the kernel that the operation is, or the only one it launched."""
    index, raw = view.timeline.index, selection.raw
    work = raw[index.on_device[raw]]
    kernels = work[view.trace.events.text("category").take(work).mask("kernel")]
    return kernel_launch(view, int(kernels[0])) if len(kernels) == 1 else None


def partner(view: TraceView, event: int) -> EventLink | None:
    """The event in the other pass, None for -1."""
    return link_to(view, event) if event >= 0 else None


def link_to(view: TraceView, event: int) -> EventLink:
    """A link to a raw event."""
    return EventLink(event, view.short_name(event))
