"""Part of an operation's details: its launch, its device work, its partner in the other pass."""

from __future__ import annotations

import msgspec
import numpy as np

from stepscope.arrays import Ids, Rows
from stepscope.serve.longest import longest_of_each
from stepscope.serve.selection import known
from stepscope.serve.table_answers import KernelLaunch, kernel_launch
from stepscope.serve.trace_view import TraceView

_MAX_ROWS = 50


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


def launch_of(view: TraceView, event: int) -> LaunchLink | None:
    """The call that launched a piece of device work."""
    index = view.timeline.index
    if event < 0 or index.launch[event] < 0:
        return None
    call = int(index.launch[event])
    link = link_to(view, call)
    return LaunchLink(link.event, link.name, int(index.start[event] - index.start[call]))


def device_work_of_each(
    view: TraceView, of: Ids, raw: Rows, events: Ids, most: int = _MAX_ROWS
) -> list[DeviceWork]:
    """The device work that each of some operations launched, the longest first.

    Args:
        view: the trace.
        of: the operation of each raw event, ascending.
        raw: raw events of the operations, ascending for each.
        events: the event that each operation is, -1 for none; device work itself launches nothing.
        most: length of each list.
    """
    index = view.timeline.index
    launched = index.on_device[raw] & ~((events >= 0) & index.on_device[events])[of]
    of, work = of[launched], raw[launched]
    count = np.bincount(of, minlength=len(events)).tolist()
    longest = longest_of_each(of, index.duration[work], most)
    rows: dict[int, WorkRow] = {}
    found = [DeviceWork(number, []) for number in count]
    for one, event in zip(of[longest].tolist(), work[longest].tolist(), strict=True):
        if event not in rows:
            rows[event] = _work_row(view, event)
        found[one].rows.append(rows[event])
    return found


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


def kernels_of_each(view: TraceView, of: Ids, raw: Rows, count: int) -> list[KernelLaunch | None]:
    """Launch configuration of the kernel that each operation is, or the only one it launched."""
    is_kernel = view.timeline.index.on_device[raw]
    is_kernel[is_kernel] = view.trace.events.text("category").take(raw[is_kernel]).mask("kernel")
    of, kernels = of[is_kernel], raw[is_kernel]
    only = np.bincount(of, minlength=count)[of] == 1
    distinct, which = np.unique(kernels[only], return_inverse=True)
    known = [kernel_launch(arguments) for arguments in view.trace.arguments_of(distinct)]
    found: list[KernelLaunch | None] = [None] * count
    for one, kernel in zip(of[only].tolist(), which.tolist(), strict=True):
        found[one] = known[kernel]
    return found


def link_to(view: TraceView, event: int) -> EventLink:
    """A link to a raw event."""
    return EventLink(event, view.short_name(event))
