"""A trace's events as a forest: each below its caller, its forward call or its launch.

The events come first and keep their numbers. Synthetic elements follow: the root, threads, modules
whose calls the file does not record, and parents for device work and memory without a launch.

A compiled operation runs long after the Python that asked for it, on other threads or a device. Its
path is: the call of the compiled function, its frames down to the line of the operation, the
operation as it was traced, the kernel. A fused kernel is below all operations that it was made
from, with the share of each. Backward operations are below the lines of their forward ones.

Source: DEEPCONTEXT sections 4.1 and 4.3.
"""

import re
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.jax.calls import call_around, calls_of_host_work
from stepscope.facts.annotate.jax.frames import frame_rows, frames_below_call
from stepscope.facts.annotate.jax.scopes import Scope, scope_of
from stepscope.facts.annotate.links.launches import caller_of, device_work, launch_of, on_host
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.contexts.call_paths import merge_paths
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
from stepscope.trace.intervals import index_pairs
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, CONTEXT_KINDS, VIAS
from stepscope.trace.sets import distinct_rows, mask_of
from stepscope.trace.shares import NO_SHARES, Shares
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_CALL, _BACKWARD, _LAUNCH = (VIAS.index(via) for via in ("call", "backward", "launch"))
_IN_BRACKETS = re.compile(r"\(([^()]+)\)")
_NUMBER = re.compile(r"^thread\b|-?\b\d+\b")


@dataclass(frozen=True)
class Forest:
    """Elements with their frames, before calls with the same path are merged."""

    parent: Ids  # int64, shape (elements,); -1 at the root, `LEFT_OUT` for some events
    frame: Ids  # number of the frame, int64, shape (elements,)
    via: Ids  # code of `VIAS`, int64, shape (elements,)
    frames: list[Frame]  # the frames by number
    host: Mask  # which events are calls, bool, shape (events,)
    device: Mask  # which are device work, bool, shape (events,)
    untracked: int  # the parent of memory events outside all calls
    shares: Shares  # further elements of fused operations
    samples: Ids  # the element of each of `instruction_samples`


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
    # Compiled operations whose origin is known.
    traced = (trace.events["origin"] >= 0) & (device | (host & is_operator(kind)))
    parent, via = _callers(trace, host, thread)
    parent = wrap_in_modules(trace, parent, is_operator(kind) & ~traced, kind, frames, synthetic)
    parent = _attach_device_work(trace, parent, device, kind, unlinked)
    compiled = device & (trace.events["scope"] >= 0) & ~traced
    parent = wrap_in_modules(trace, parent, compiled, kind, frames, synthetic)
    parent, shares = _place_traced(trace, parent, traced, (frame, via, thread), frames, synthetic)
    samples = _samples(trace, frames, synthetic)
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
        samples=samples,
    )


def _samples(trace: Trace, frames: Frames, synthetic: SyntheticElements) -> Ids:
    """Elements for sampled instructions: below their kernel the reason, and below that the instruction."""
    table = trace["instruction_samples"]
    reasons = frames.codes(Frame("instruction", reason or "") for reason in table.text("reason"))
    element = _add_distinct(table["event"].astype(np.int64), reasons.astype(np.int64), synthetic)
    places = zip(table.text("instruction"), table.text("file"), table["line"].tolist(), strict=True)
    codes = frames.codes(Frame("instruction", name or "", file or "", line) for name, file, line in places)
    known = table.text("instruction").where(bool)
    element[known] = _add_distinct(element[known], codes[known].astype(np.int64), synthetic)
    return element


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
    pairs, number = distinct_rows(names.codes, categories.codes)
    distinct = [frame_of(names.values[name], CATEGORIES[category]) for name, category in pairs]
    frame: Ids = frames.codes(distinct).astype(np.int64)[number]
    is_module = np.array([known.kind == "module" for known in distinct], np.bool_)[number]
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
    above = caller_of(trace)[device].astype(np.int64)
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

    Threads with the same role share a name; `host` marks calls on threads, shape (events,).
    """
    names = [_without_number(name or "") for name in trace["tracks"].text("name")]
    for track in np.flatnonzero(_runs_backward(trace, host)).tolist():
        names[track] = "backward"
    for rank in trace.metadata.ranks if names else ():
        names[main_track(trace, rank)] = "main"
    return names


def _without_number(name: str) -> str:
    found = _IN_BRACKETS.search(name)
    plain = found[1] if found else " ".join(_NUMBER.sub(" ", name).split())
    return plain or "thread"


def _runs_backward(trace: Trace, host: Mask) -> Mask:
    track, tracks = trace.events["track"], len(trace["tracks"])
    count = np.bincount(track[host & trace.events.text("stage").mask("backward")], minlength=tracks)
    return (count > 0) & (2 * count >= np.bincount(track[host], minlength=tracks))


# -- compiled operations below the frames in which they were traced


def place_below_frames(
    trace: Trace, rows: Ids, parent: Ids, frame: Ids, frames: Frames, synthetic: SyntheticElements
) -> tuple[Ids, Shares]:
    """Put compiled operations below the frames of the operations that they were made from.

    Args:
        parent: the element above each event, shape (events,): of `rows`, their call.
        frame: code of the frame of each event, shape (events,).
        frames, synthetic: extended with the new frames and elements.

    Returns:
        The new parents, shape (events,), and the further elements of fused operations.
    """
    origins = trace["origins"]
    first = trace.events["origin"][rows].astype(np.int64)
    size = np.bincount(origins["first"], minlength=len(origins))
    owner, origin = index_pairs(first, first + size[first])
    above = _chains(trace, parent[rows][owner], origin, frames, synthetic)
    above = _operations(trace, above, origin, frames, synthetic)
    return _leaves(rows, owner, above, origins["share"][origin], (parent, frame), synthetic)


def _leaves(
    rows: Ids, owner: Ids, above: Ids, share: Floats, elements: tuple[Ids, Ids], synthetic: SyntheticElements
) -> tuple[Ids, Shares]:
    """The kernel of each event below each of its operations; the event itself below the largest."""
    parent, frame = elements
    order = np.lexsort((-share, owner))
    largest = mask_of(order[np.flatnonzero(np.diff(owner[order], prepend=-1))], len(owner))
    result = parent.copy()
    result[rows] = above[largest]
    others = np.flatnonzero(~largest)
    element = rows[owner]
    element[others] = _add_distinct(above[others], frame[rows[owner[others]]], synthetic)
    several = np.bincount(owner)[owner] > 1
    return result, Shares.of(rows[owner][several], element[several], share[several])


def _add_distinct(parent: Ids, frame: Ids, synthetic: SyntheticElements, via: int = _CALL) -> Ids:
    """One element for each distinct pair of parent and frame; the element of each pair given."""
    span = int(frame.max(initial=0)) + 1
    pairs, which = np.unique(parent * span + frame, return_inverse=True)
    result: Ids = synthetic.next + which
    synthetic.extend(pairs // span, pairs % span, via)
    return result


def _operations(trace: Trace, above: Ids, origin: Ids, frames: Frames, synthetic: SyntheticElements) -> Ids:
    """An element for each operation as it was traced, below its frame."""
    text = trace["origins"].text("scope")
    paths = [_path_of(scope_of(value)) for value in text.values]
    length = np.array([len(path) for path in paths], np.int64)
    backward = np.array([scope_of(value).stage == "backward" for value in text.values], np.bool_)
    code = text.codes[origin]
    result = above.copy()
    for depth in range(int(length.max(initial=0))):
        names = frames.codes(path[min(depth, len(path) - 1)] for path in paths if path)
        known = np.zeros(len(paths), np.int64)
        known[length > 0] = names
        is_backward = backward[code] & (depth == 0)
        for via, chosen in ((_CALL, ~is_backward), (_BACKWARD, is_backward)):
            at = np.flatnonzero(chosen & (length[code] > depth))
            result[at] = _add_distinct(result[at], known[code[at]], synthetic, via)
    return result


def _path_of(scope: Scope) -> list[Frame]:
    """The frames of an operation below its line: what encloses it, and itself."""
    inside = [Frame("annotation", name) for name in scope.inside]
    return [*inside, Frame("operator", scope.primitive)] if scope.primitive else []


def _chains(trace: Trace, call: Ids, origin: Ids, frames: Frames, synthetic: SyntheticElements) -> Ids:
    """The element of each origin's frame below its call; the call where there is no frame."""
    table = trace["frames"]
    outer, kept = frames_below_call(trace)
    own = np.append(kept, -1)[trace["origins"]["frame"][origin]]
    result = call.copy()
    at = np.flatnonzero(own >= 0)
    result[at] = synthetic.nest(call[at], own[at], outer, _frame_codes(table, frames))
    return result


def _frame_codes(table: Table, frames: Frames) -> Ids:
    rows = frame_rows(table)
    codes = frames.codes(Frame("python", row.function or "<unknown>", row.file, row.line) for row in rows)
    return codes.astype(np.int64)


def calls_of(trace: Trace, rows: Ids, parent: Ids, thread: Ids) -> Ids:
    """The call that asked for each compiled operation, int64, shape (rows,).

    Where it is not known, on a device what launched the operation, else its thread's element.
    """
    launch = launch_of(trace)[rows]
    on_device = np.where(launch >= 0, call_around(trace)[launch], -1)
    call = np.where(launch >= 0, on_device, calls_of_host_work(trace)[rows]).astype(np.int64)
    otherwise = np.where(on_host(trace)[rows], thread[trace.events["track"][rows]], parent[rows])
    return np.where(call >= 0, call, otherwise)


def merged_parents(parent: Ids, key: Ids, wanted: Ids) -> Ids:
    """Elements as `wanted`, of equal paths the first: work of many calls shares its frames.

    The parent of a root is -1, and of some events `LEFT_OUT`.
    """
    present = parent != LEFT_OUT
    number = np.append(np.cumsum(present) - 1, -1)
    node = merge_paths(number[parent[present]], key[present]).node
    rows = np.flatnonzero(present)
    first = np.full(int(node.max(initial=-1)) + 1, len(parent))
    np.minimum.at(first, node, rows)
    of_element = np.arange(len(parent))
    of_element[rows] = first[node]
    return of_element[wanted]
