"""A trace's events as a forest: what ran inside, ran backward for, or was launched by what.

The events come first and keep their numbers. After them come elements that stand for no event: the
root, threads, modules whose calls the file does not record, and places for what nothing launched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.tracks import device_work, on_host
from stepscope.contexts.elements import Elements
from stepscope.contexts.frames import Frame, Frames, frame_of
from stepscope.contexts.modules import is_operator, module_frames, wrap_in_modules
from stepscope.contexts.threads import thread_names
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, CONTEXT_KINDS, VIAS
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
_CALL, _BACKWARD, _LAUNCH = (VIAS.index(via) for via in ("call", "backward", "launch"))
NOWHERE = -2


@dataclass(frozen=True)
class Forest:
    """Elements with their frames, before calls of one path are put together.

    Attributes:
        parent: int64, shape (elements,); -1 at the root, -2 for an event that is left out.
        frame: number of the frame, int64, shape (elements,).
        via: code of `VIAS`, int64, shape (elements,).
        frames: the frames by number.
        host, device: which events are calls, and which device work; bool, shape (events,).
        untracked: the element for memory outside all calls.
    """

    parent: Ids
    frame: Ids
    via: Ids
    frames: list[Frame]
    host: Mask
    device: Mask
    untracked: int


def plant(trace: Trace) -> Forest:
    """The forest of a trace's events."""
    frames, beside = Frames(), Elements(len(trace.events))
    host, device = _calls(trace), device_work(trace)
    root = beside.add(-1, frames[Frame("root", "")])
    thread = _threads(trace, host, root, frames, beside)
    unlinked = beside.add(root, frames[Frame("unlinked", "work without a launch")])
    untracked = beside.add(root, frames[Frame("unlinked", "memory outside all calls")])
    frame = _frames_of_events(trace, frames)
    kind = np.array([CONTEXT_KINDS.index(one.kind) for one in frames], np.int64)[frame]
    parent, via = _callers(trace, host, thread)
    parent = wrap_in_modules(trace, parent, is_operator(kind), kind, frames, beside)
    parent = _hang_device_work(trace, parent, device, kind, unlinked)
    compiled = device & (trace.events["scope"] >= 0)
    parent = wrap_in_modules(trace, parent, compiled, kind, frames, beside)
    return Forest(
        parent=np.concatenate([parent, beside.parents()]),
        frame=np.concatenate([frame, beside.frames()]),
        via=np.concatenate(
            [np.where(device, _LAUNCH, via), np.full(beside.next - len(via), _CALL)]
        ),
        frames=list(frames),
        host=host,
        device=device,
        untracked=untracked,
    )


def _frames_of_events(trace: Trace, frames: Frames) -> Ids:
    """The frame of each event; a call of a module is named by the module's path."""
    names, categories = trace.events.text("name"), trace.events.text("category")
    code = names.codes.astype(np.int64) * len(CATEGORIES) + categories.codes
    used = np.zeros(len(names.values) * len(CATEGORIES), np.bool_)
    used[code] = True
    inverse = (np.cumsum(used) - 1)[code]
    made = [
        frame_of(names.values[pair // len(CATEGORIES)], CATEGORIES[pair % len(CATEGORIES)])
        for pair in np.flatnonzero(used).tolist()
    ]
    frame: Ids = frames.codes(made).astype(np.int64)[inverse]
    is_module = np.array([one.kind == "module" for one in made], np.bool_)[inverse]
    known = is_module & (trace.events["module"] >= 0)
    if known.any():
        frame[known] = module_frames(trace, frames)[trace.events["module"][known]]
    return frame


def _calls(trace: Trace) -> Mask:
    """Events on CPU threads, but for a profiler's spans about itself on tracks of their own."""
    host = on_host(trace)
    plain = trace.events.text("category").mask("other")
    if not (host & ~plain).any():
        return host
    told = np.bincount(trace.events["track"][~plain], minlength=len(trace["tracks"])) > 0
    spans: Mask = plain & ~told[trace.events["track"]]
    return host & ~spans


def _threads(trace: Trace, host: Mask, root: int, frames: Frames, beside: Elements) -> Ids:
    """The element of each track's thread, int64, shape (tracks,)."""
    names = thread_names(trace, host)
    made = {name: beside.add(root, frames[Frame("thread", name)]) for name in dict.fromkeys(names)}
    return np.array([made[name] for name in names], np.int64)


def _callers(trace: Trace, host: Mask, thread: Ids) -> tuple[Ids, Ids]:
    """The caller of each call: around it on its thread, or its forward call for a backward one."""
    events = trace.events
    parent = events["parent"].astype(np.int64)
    top = parent < 0
    parent[top] = thread[events["track"][top]]
    forward = events["forward_event"].astype(np.int64)
    forward[~host | (forward >= np.arange(len(events)))] = -1
    # An event inside one that went to the same forward call goes with it.
    around = inherit(events["parent"], forward)[np.maximum(events["parent"], 0)]
    moved = (forward >= 0) & (top | (around != forward))
    parent = np.where(moved, forward, parent)
    parent[~host] = NOWHERE
    return parent, np.where(moved, _BACKWARD, _CALL)


def _hang_device_work(trace: Trace, parent: Ids, device: Mask, kind: Ids, unlinked: int) -> Ids:
    """Device work goes below the operator that launched it, beside the call to the runtime."""
    above = launch_of(trace)[device].astype(np.int64)
    is_runtime = np.append(kind == CONTEXT_KINDS.index("runtime"), False)
    while (inside := is_runtime[np.clip(above, -1, len(kind))]).any():
        above[inside] = parent[above[inside]]
    left_out = np.append(parent == NOWHERE, False)[np.clip(above, -1, len(kind))]
    result = parent.copy()
    result[device] = np.where((above >= 0) & ~left_out, above, unlinked)
    return result
