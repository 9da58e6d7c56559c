"""The operator sequence of each pass, pieces of it that are repeated, and common subsequences."""

import re
from collections.abc import Sequence

import numpy as np

from stepscope.base.arrays import Ids32, IntArray, Mask, Rows
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.facts.annotate.steps.steps import main_track
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

_FORWARD = [STAGES.index(stage) for stage in FORWARD_STAGES]
_BACKWARD = STAGES.index("backward")
# Nodes of the autograd graph, without those that only forward the result of the node before them.
_NODE = re.compile(r"(?<!\bT)(?<!\bView)Backward\d*$")


def forward_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The outermost operators of the forward pass of each step: one array of event ids per step.

    A wrapper is replaced by the operators inside it, unless it is an ATen operator or recognized: a
    compiled region, a range.

    Args:
        recognized: events whose name matches the role of a module, shape (events,).
    """
    events = trace.events
    chosen = np.isin(events["stage"], _FORWARD) & (events["track"] == main_track(trace))
    return _by_step(trace, _outermost(trace, chosen, recognized))


def recomputed_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The same for forward work repeated in backward."""
    return _by_step(trace, _outermost(trace, trace.events["recompute"] == 1, recognized))


def backward_rows(trace: Trace) -> list[Rows]:
    """The autograd nodes of each step, last first: roughly the order of forward."""
    events = trace.events
    chosen = (events["stage"] == _BACKWARD) & events.text("category").mask("cpu_op")
    chosen &= events["recompute"] == 0
    nodes = outermost(events["parent"], chosen)
    nodes &= events.text("name").where(lambda name: bool(_NODE.search(name)))
    return [rows[::-1] for rows in _by_step(trace, nodes)]


def _outermost(trace: Trace, chosen: Mask, recognized: Mask) -> Mask:
    """The outermost operators among the chosen events, and launches outside operators."""
    events = trace.events
    operator = chosen & events.text("category").mask("cpu_op")
    launch = np.zeros(len(events), np.bool_)
    launch[trace["launches"]["cpu_event"]] = True
    work = operator | (chosen & launch)
    named = events.text("name").where(lambda name: name.startswith("aten::"))
    solid = work & (named | recognized | ~_around_any(trace, work & recognized))
    return outermost(events["parent"], solid)


def _around_any(trace: Trace, inner: Mask) -> Mask:
    """Events that contain one of `inner`."""
    parent = trace.events["parent"]
    holds = np.zeros(len(parent), np.bool_)
    outer = distinct(parent[inner])
    while len(outer := outer[outer >= 0]):
        holds[outer] = True
        outer = distinct(parent[outer])
    return holds


def _by_step(trace: Trace, chosen: Mask) -> list[Rows]:
    step = trace.events["step"]
    rows = np.flatnonzero(chosen & (step >= 0))
    rows = rows[np.argsort(step[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(step[rows])) + 1
    return np.split(rows, cuts) if len(rows) else []


def names_inside(trace: Trace, opaque: Mask) -> dict[int, set[int]]:
    """Name codes of the events and kernels that each opaque event contains or launches."""
    events = trace.events
    holder = inherit(events["parent"], np.where(opaque, events["id"], -1))
    caller = launch_of(trace)
    holder = np.where(caller >= 0, holder[caller], holder)
    inner = np.flatnonzero((holder >= 0) & (holder != events["id"]))
    pairs = np.unique(np.stack([holder[inner], events["name"][inner]]), axis=1)
    codes_inside: dict[int, set[int]] = {}
    for event, name in zip(*pairs.tolist(), strict=True):
        codes_inside.setdefault(event, set()).add(name)
    return codes_inside


# -- recomputed operators

_MIN_EQUAL = 0.5  # of the operators of a piece: else it repeats no piece of the pass


def repeated_rows(names: IntArray, nodes: Rows, forward: Rows, again: Rows) -> Rows:
    """The forward operator that each recomputed operator of the same step repeats.

    Autograd repeats pieces of the forward pass, the last piece first. Each piece is located by the
    names of its operators, at the last position in the pass where most of them agree.

    Args:
        names: a number for the name of each event, shape (events,).
        nodes: event ids of gradient nodes, ascending; pieces lie between them.
        forward: event ids of the outermost forward operators of a step, in order.

    Returns:
        An event id for each of `again`, or -1, shape (len(again),).
    """
    result = np.full(len(again), -1, np.intp)
    done = np.searchsorted(nodes, again)
    for piece in np.split(np.arange(len(again)), np.flatnonzero(np.diff(done)) + 1):
        start, equal = _position(names[forward], names[again[piece]])
        if equal.mean() >= _MIN_EQUAL:
            first, last = np.flatnonzero(equal)[[0, -1]]
            result[piece[first : last + 1]] = forward[start + first : start + last + 1]
            forward = forward[: start + first]
    return result


def _position(names: IntArray, piece: IntArray) -> tuple[int, Mask]:
    """The last position in `names` where most of `piece` agrees, and which elements agree.

    The piece may overlap either end of `names`.
    """
    edge = np.full(len(piece), -2)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([edge, names, edge]), len(piece))
    equal = windows == piece
    count = equal.sum(axis=1)
    start = len(count) - 1 - int(count[::-1].argmax())
    return start - len(piece), equal[start]


# -- common subsequences


def common_positions(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """The longest sequence of position pairs, ascending in both, whose elements share a bit.

    Returns:
        (position in `first`, position in `second`) for each pair.

    Example:
        >>> common_positions([1, 2, 4], [2, 8, 4])
        [(1, 0), (2, 2)]

    Source: the longest common subsequence, Wagner and Fischer 1974; one row of the table at a time.
    """
    shared = _share_bit(first, second)
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int32)
    for row, match in enumerate(shared):
        best = np.maximum(lengths[row, 1:], lengths[row, :-1] + match)
        lengths[row + 1, 1:] = np.maximum.accumulate(best)
    return _backtrack(lengths)


def with_neighbors(
    pairs: Sequence[tuple[int, int]], first: Sequence[int], second: Sequence[int]
) -> list[tuple[int, int]]:
    """Extend pairs: unpaired elements of `second` join the adjacent pair if they share a bit.

    Example:
        >>> with_neighbors([(0, 1)], [2], [2, 2, 4])
        [(0, 0), (0, 1)]
    """
    partner = {position: other for other, position in pairs}
    for order in (range(len(second)), reversed(range(len(second)))):
        near = -1
        for position in order:
            near = partner.get(position, near)
            if near >= 0 and first[near] & second[position]:
                partner.setdefault(position, near)
    return [(other, position) for position, other in sorted(partner.items())]


def _share_bit(first: Sequence[int], second: Sequence[int]) -> Mask:
    """Whether elements share a bit; distinct values are few, sequences may be long."""
    rows, row_of = _distinct(first)
    columns, column_of = _distinct(second)
    table = np.array([[bool(row & column) for column in columns] for row in rows], np.bool_)
    table = table.reshape(len(rows), len(columns))
    return table[row_of][:, column_of]


def _distinct(values: Sequence[int]) -> tuple[list[int], Rows]:
    index: dict[int, int] = {}
    codes = [index.setdefault(value, len(index)) for value in values]
    return list(index), np.array(codes, np.intp)


def _backtrack(lengths: Ids32) -> list[tuple[int, int]]:
    row, column = lengths.shape[0] - 1, lengths.shape[1] - 1
    pairs = []
    while row and column:
        here = lengths[row, column]
        if here == lengths[row, column - 1]:
            column -= 1
        elif here == lengths[row - 1, column]:
            row -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]
