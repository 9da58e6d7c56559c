"""The operator sequence of each pass, pieces of it that are repeated, and common subsequences."""

import numpy as np

from stepscope.base.arrays import IntArray, Mask, Rows
from stepscope.facts.annotate.links.launches import at_launch
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.trace.nesting import holds, innermost, outermost
from stepscope.trace.schema import FORWARD_STAGES
from stepscope.trace.sets import mask_of
from stepscope.trace.trace import Trace


def forward_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The outermost operators of the forward pass of each step: one array of event ids per step.

    A wrapper (a compiled region, a range) is replaced by the operators inside it, unless it is an
    ATen operator or its name matches the role of a module: `recognized`, shape (events,).
    """
    events = trace.events
    chosen = events.text("stage").mask(*FORWARD_STAGES) & (events["track"] == main_track(trace))
    return _by_step(trace, _outermost(trace, chosen, recognized))


def recomputed_rows(trace: Trace, recognized: Mask) -> list[Rows]:
    """The same for forward work repeated in backward."""
    return _by_step(trace, _outermost(trace, trace.events["recompute"] == 1, recognized))


def _outermost(trace: Trace, chosen: Mask, recognized: Mask) -> Mask:
    """The outermost operators among the chosen events, and launches outside operators."""
    events = trace.events
    operator = chosen & events.text("category").mask("cpu_op")
    launch = mask_of(trace["launches"]["cpu_event"], len(events))
    work = operator | (chosen & launch)
    named = events.text("name").where(lambda name: name.startswith("aten::"))
    empty = ~holds(events["parent"], work & recognized)
    return outermost(events["parent"], work & (named | recognized | empty))


def _by_step(trace: Trace, chosen: Mask) -> list[Rows]:
    step = trace.events["step"]
    rows = np.flatnonzero(chosen & (step >= 0))
    rows = rows[np.argsort(step[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(step[rows])) + 1
    return np.split(rows, cuts) if len(rows) else []


def names_inside(trace: Trace, opaque: Mask) -> dict[int, set[int]]:
    """Name codes of the events and kernels that each opaque event contains or launches."""
    events = trace.events
    holder = at_launch(trace, innermost(events["parent"], opaque))
    inner = np.flatnonzero((holder >= 0) & (holder != events["id"]))
    pairs = np.unique(np.stack([holder[inner], events["name"][inner]]), axis=1)
    codes_inside: dict[int, set[int]] = {}
    for event, name in zip(*pairs.tolist(), strict=True):
        codes_inside.setdefault(event, set()).add(name)
    return codes_inside


# -- recomputed operators

_MIN_EQUAL = 0.5  # of the operators of a piece: else it repeats no piece of the pass


def repeated_rows(names: IntArray, nodes: Rows, forward: Rows, again: Rows) -> Rows:
    """The id of the forward operator that each of `again`, recomputed in the same step, repeats, or -1.

    Autograd repeats pieces of the forward pass, the last piece first. Each piece is located by the
    names of its operators, at the last position in the pass where most of them agree.

    Args:
        names: a number for the name of each event, shape (events,).
        nodes: event ids of gradient nodes, ascending; pieces lie between them.
        forward: event ids of the outermost forward operators of a step, in order.
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
