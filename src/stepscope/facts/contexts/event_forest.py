"""A trace's events as a forest: each below its caller, its forward call or its launch.

The events come first and keep their numbers. Synthetic elements follow: the root, threads, modules
whose calls the file does not record, and parents for device work and memory without a launch.
"""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.annotate.links.launches import device_work, launch_of, on_host
from stepscope.facts.annotate.range_names import is_step
from stepscope.facts.contexts.frames import (
    LEFT_OUT,
    Frame,
    Frames,
    SyntheticElements,
    frame_of,
    is_operator,
    module_frames,
    wrap_in_modules,
)
from stepscope.facts.contexts.traced_operations import (
    calls_of,
    merged_parents,
    place_below_frames,
    traced_operations,
)
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, CONTEXT_KINDS, VIAS
from stepscope.trace.shares import NO_SHARES, Shares
from stepscope.trace.trace import Trace

_CALL, _BACKWARD, _LAUNCH = (VIAS.index(via) for via in ("call", "backward", "launch"))
_IN_BRACKETS = re.compile(r"\(([^()]+)\)")
_NUMBER = re.compile(r"^thread\b|-?\b\d+\b")


@dataclass(frozen=True)
class Forest:
    """Elements with their frames, before calls with the same path are merged.

    Attributes:
        parent: int64, shape (elements,); -1 at the root, `LEFT_OUT` for some events.
        frame: number of the frame, int64, shape (elements,).
        via: code of `VIAS`, int64, shape (elements,).
        frames: the frames by number.
        host, device: which events are calls, and which are device work; bool, shape (events,).
        untracked: the parent of memory events outside all calls.
        shares: further elements of fused operations.
    """

    parent: Ids
    frame: Ids
    via: Ids
    frames: list[Frame]
    host: Mask
    device: Mask
    untracked: int
    shares: Shares


def build_forest(trace: Trace) -> Forest:
    """The forest of a trace's events."""
    frames, synthetic = Frames(), SyntheticElements(len(trace.events))
    host, device = _calls(trace), device_work(trace)
    root = synthetic.add(-1, frames[Frame("root", "")])
    thread = _threads(trace, host, root, frames, synthetic)
    unlinked = synthetic.add(root, frames[Frame("unlinked", "work without a launch")])
    untracked = synthetic.add(root, frames[Frame("unlinked", "memory outside all calls")])
    frame = _frames_of_events(trace, frames)
    kind = np.array([CONTEXT_KINDS.index(known.kind) for known in frames], np.int64)[frame]
    traced = traced_operations(trace, device | (host & is_operator(kind)))
    parent, via = _callers(trace, host, thread)
    parent = wrap_in_modules(trace, parent, is_operator(kind) & ~traced, kind, frames, synthetic)
    parent = _attach_device_work(trace, parent, device, kind, unlinked)
    compiled = device & (trace.events["scope"] >= 0) & ~traced
    parent = wrap_in_modules(trace, parent, compiled, kind, frames, synthetic)
    parent, shares = _place_traced(trace, parent, traced, (frame, via, thread), frames, synthetic)
    added = synthetic.columns()
    return Forest(
        parent=np.concatenate([parent, added[0]]),
        frame=np.concatenate([frame, added[1]]),
        via=np.concatenate([np.where(device, _LAUNCH, via), added[2]]),
        frames=list(frames),
        host=host,
        device=device,
        untracked=untracked,
        shares=shares,
    )


def _place_traced(
    trace: Trace,
    parent: Ids,
    traced: Mask,
    elements: tuple[Ids, Ids, Ids],
    frames: Frames,
    synthetic: SyntheticElements,
) -> tuple[Ids, Shares]:
    """Put compiled operations below their calls and the frames in which they were traced."""
    rows = np.flatnonzero(traced)
    if not len(rows):
        return parent, NO_SHARES
    frame, via, thread = elements
    result = parent.copy()
    result[rows] = calls_of(trace, rows, parent, thread)
    others = np.where(traced, LEFT_OUT, parent)
    added_parents, added_frames, _ = synthetic.columns()
    key = np.concatenate([frame * len(VIAS) + via, added_frames * len(VIAS) + _CALL])
    result[rows] = merged_parents(np.concatenate([others, added_parents]), key, result[rows])
    return place_below_frames(trace, rows, result, frame, frames, synthetic)


def _frames_of_events(trace: Trace, frames: Frames) -> Ids:
    """The frame of each event; a call of a module is named by the module's path."""
    names, categories = trace.events.text("name"), trace.events.text("category")
    code = names.codes.astype(np.int64) * len(CATEGORIES) + categories.codes
    used = np.zeros(len(names.values) * len(CATEGORIES), np.bool_)
    used[code] = True
    inverse = (np.cumsum(used) - 1)[code]
    distinct = [
        frame_of(names.values[pair // len(CATEGORIES)], CATEGORIES[pair % len(CATEGORIES)])
        for pair in np.flatnonzero(used).tolist()
    ]
    frame: Ids = frames.codes(distinct).astype(np.int64)[inverse]
    is_module = np.array([known.kind == "module" for known in distinct], np.bool_)[inverse]
    known = is_module & (trace.events["module"] >= 0)
    if known.any():
        frame[known] = module_frames(trace, frames)[trace.events["module"][known]]
    return frame


def _calls(trace: Trace) -> Mask:
    """Events on CPU threads, except a profiler's spans about itself on separate tracks."""
    host = on_host(trace)
    plain = trace.events.text("category").mask("other")
    if not (host & ~plain).any():
        return host
    has_calls = np.bincount(trace.events["track"][~plain], minlength=len(trace["tracks"])) > 0
    spans: Mask = plain & ~has_calls[trace.events["track"]]
    return host & ~spans


def _threads(trace: Trace, host: Mask, root: int, frames: Frames, synthetic: SyntheticElements) -> Ids:
    names = thread_names(trace, host)
    elements = {name: synthetic.add(root, frames[Frame("thread", name)]) for name in dict.fromkeys(names)}
    return np.array([elements[name] for name in names], np.int64)


def _callers(trace: Trace, host: Mask, thread: Ids) -> tuple[Ids, Ids]:
    """The caller of each call: the call around it on its thread; for backward, the forward call."""
    events = trace.events
    parent = events["parent"].astype(np.int64)
    top = parent < 0
    parent[top] = thread[events["track"][top]]
    forward = events["forward_event"].astype(np.int64)
    forward[~host | (forward >= np.arange(len(events)))] = -1
    # An event stays with its parent if both belong to the same forward call.
    around = inherit(events["parent"], forward)[np.maximum(events["parent"], 0)]
    moved = (forward >= 0) & (top | (around != forward))
    parent = np.where(moved, forward, parent)
    parent[~host] = LEFT_OUT
    return parent, np.where(moved, _BACKWARD, _CALL)


def _attach_device_work(trace: Trace, parent: Ids, device: Mask, kind: Ids, unlinked: int) -> Ids:
    """Put device work below the operator that launched it, next to the runtime call."""
    above = launch_of(trace)[device].astype(np.int64)
    is_runtime = np.append(kind == CONTEXT_KINDS.index("runtime"), False)
    while (inside := is_runtime[np.clip(above, -1, len(kind))]).any():
        above[inside] = parent[above[inside]]
    left_out = np.append(parent == LEFT_OUT, False)[np.clip(above, -1, len(kind))]
    result = parent.copy()
    result[device] = np.where((above >= 0) & ~left_out, above, unlinked)
    return result


# -- threads by names that are stable from run to run, unlike thread ids


def thread_names(trace: Trace, host: Mask) -> list[str]:
    """A name for each track: `main` for the training loop, `backward` for autograd, else its own.

    Args:
        host: events that are calls on threads, bool, shape (events,).

    Returns:
        One name per track; threads with the same role share a name.
    """
    names = [_without_number(name or "") for name in trace["tracks"].text("name")]
    for track in np.flatnonzero(_runs_backward(trace, host)).tolist():
        names[track] = "backward"
    for track in _main_tracks(trace, host):
        names[track] = "main"
    return names


def _without_number(name: str) -> str:
    found = _IN_BRACKETS.search(name)
    plain = found[1] if found else " ".join(_NUMBER.sub(" ", name).split())
    return plain or "thread"


def _runs_backward(trace: Trace, host: Mask) -> Mask:
    track, tracks = trace.events["track"], len(trace["tracks"])
    backward = host & trace.events.text("stage").mask("backward")
    count = np.bincount(track[backward], minlength=tracks)
    return (count > 0) & (2 * count >= np.bincount(track[host], minlength=tracks))


def _main_tracks(trace: Trace, host: Mask) -> list[int]:
    """The training loop's track of each rank: the one with step marks, else the busiest."""
    events, tracks = trace.events, len(trace["tracks"])
    marks = host & events.text("name").where(is_step)
    calls = host & events.text("category").mask("cpu_op", "python", "runtime")
    main: list[int] = []
    for named in (marks, calls, host):
        weight = np.bincount(events["track"][named], events["self_ns"][named] + 1.0, tracks)
        for rank in trace.metadata.ranks:
            of_rank = np.where(trace["tracks"]["rank"] == rank, weight, 0.0)
            ranks = {int(trace["tracks"]["rank"][track]) for track in main}
            if tracks and of_rank.max() > 0 and rank not in ranks:
                main.append(int(of_rank.argmax()))
    return main
