"""Puts compiled operations below the Python frames in which they were traced.

A compiled operation runs long after the Python that asked for it, on other threads or a device. Its
path is: the call of the compiled function, its frames down to the line of the operation, the
operation as it was traced, the kernel. A fused kernel is below all operations that it was made
from, with the share of each. Backward operations are below the lines of their forward ones.

Source: DEEPCONTEXT sections 4.1 and 4.3.
"""

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.jax.calls import call_around, calls_of_host_work
from stepscope.facts.annotate.jax.frames import frames_below_call
from stepscope.facts.annotate.jax.scopes import Scope, scope_of
from stepscope.facts.annotate.links.launches import launch_of, on_host
from stepscope.facts.contexts.call_paths import merge_paths
from stepscope.facts.contexts.frames import LEFT_OUT, Frame, Frames, SyntheticElements
from stepscope.trace.schema import VIAS
from stepscope.trace.shares import Shares
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_CALL, _BACKWARD = VIAS.index("call"), VIAS.index("backward")


def traced_operations(trace: Trace, wanted: Mask) -> Mask:
    """Which of some events are compiled operations whose origin is known, bool, shape (events,)."""
    return wanted & (trace.events["origin"] >= 0)


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
    size = np.bincount(origins["first"], minlength=len(origins))
    first = trace.events["origin"][rows].astype(np.int64)
    count = size[first]
    owner = np.repeat(np.arange(len(rows)), count)
    origin = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    above = _chains(trace, parent[rows][owner], origin, frames, synthetic)
    above = _operations(trace, above, origin, frames, synthetic)
    return _leaves(rows, owner, above, origins["share"][origin], (parent, frame), synthetic)


def _leaves(
    rows: Ids, owner: Ids, above: Ids, share: Floats, elements: tuple[Ids, Ids], synthetic: SyntheticElements
) -> tuple[Ids, Shares]:
    """The kernel of each event below each of its operations; the event itself below the largest."""
    parent, frame = elements
    order = np.lexsort((-share, owner))
    largest = np.zeros(len(owner), np.bool_)
    largest[order[np.flatnonzero(np.diff(owner[order], prepend=-1))]] = True
    result = parent.copy()
    result[rows] = above[largest]
    others = np.flatnonzero(~largest)
    element = rows[owner]
    element[others] = _add_distinct(above[others], frame[rows[owner[others]]], synthetic)
    several = np.bincount(owner)[owner] > 1
    return result, Shares.of(rows[owner][several], element[several], share[several])


def _add_distinct(parent: Ids, frame: Ids, synthetic: SyntheticElements, via: int = _CALL) -> Ids:
    """One element for each distinct pair of parent and frame; the element of each pair given."""
    if not len(parent):
        return parent
    span = int(frame.max()) + 1
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
    if not len(at):
        return result
    result[at] = synthetic.nest(call[at], own[at], outer, _frame_codes(table, frames))
    return result


def _frame_codes(table: Table, frames: Frames) -> Ids:
    rows = zip(table.text("function"), table.text("file"), table["line"].tolist(), strict=True)
    codes = frames.codes(
        Frame("python", function or "<unknown>", file or "", line) for function, file, line in rows
    )
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

    Args:
        parent: of each element, -1 at the root, `LEFT_OUT` for some events.
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
