"""Stages of compiled operations outside of the two passes: by their roles, or as evaluation.

One program may do all that a training loop does: shuffle an epoch, train on its batches, evaluate.
What an operation takes, and what takes it, is known of each (`origins.role`). Whether it runs what
is trained shows in its stack: it was traced within a function of the user's that multiplies
matrices in one of the two passes.

A whole program evaluates if nothing in it is differentiated or updates anything, and if it was
traced through the functions of the user in which another program differentiates. If it makes what
that one takes, as shapes show, it is part of training, and forward: the rollouts of reinforcement
learning, and a teacher's targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepscope.annotate.jax.frames import frames_below_call, frames_of_events, is_users
from stepscope.annotate.range_names import CODE
from stepscope.arrays import Ids, IntArray, Mask
from stepscope.trace.schema import PRODUCT_KINDS, ROLES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_STAGES = {
    "data": "data_loading",
    "constant": "other",
    "pass": "forward",
    "update": "optimizer",
    "gradient": "backward",
    "result": "other",
}
_TAKEN = ("data", "constant", "pass")  # by one of the passes
_NONE = -1


def with_roles(trace: Trace, stage: IntArray) -> IntArray:
    """The stages, with those of operations that have none yet, by their roles."""
    table = np.array([*(CODE[_STAGES[role]] for role in ROLES), _NONE])
    return np.where(stage == _NONE, table[_roles(trace)], stage)


def with_trained_functions(trace: Trace, stage: IntArray) -> IntArray:
    """The stages, with those of operations that run what is trained outside of the two passes.

    If a pass takes what they make, as the targets that another network computes, they are forward;
    else they evaluate.
    """
    role = _roles(trace)
    rest = (stage == _NONE) & (role != _NONE)
    if not rest.any():
        return stage
    outer, kept = frames_below_call(trace)
    frame = np.append(kept, _NONE)[frames_of_events(trace)]
    passes = trace.events.text("scope").where(lambda text: "jvp(" in text)
    products = passes & trace.events.text("kind").mask(*PRODUCT_KINDS)
    trained = _trained(trace, outer, frame[products])
    runs_trained = rest & np.append(_below(trained, outer), False)[frame]
    taken = np.isin(role, [ROLES.index(name) for name in _TAKEN])
    result = stage.copy()
    result[runs_trained & taken] = CODE["forward"]
    result[runs_trained & ~taken] = CODE["evaluation"]
    return result


def _roles(trace: Trace) -> IntArray:
    """The role of each event's operation, -1 if unknown; int8, shape (events,)."""
    known = np.append(trace["origins"].text("role").codes, _NONE)
    result: IntArray = known[trace.events["origin"]]
    return result


def _trained(trace: Trace, outer: Ids, frames: Ids) -> Mask:
    """Frames of the user's innermost functions around some frames, bool, shape (frames,)."""
    functions, files = trace["frames"].text("function"), trace["frames"].text("file")
    name_of = list(zip(functions, files, strict=True))
    found = set()
    for row in np.unique(frames[frames >= 0]).tolist():
        while row >= 0 and not is_users(files[row] or ""):
            row = int(outer[row])
        if row >= 0 and outer[row] >= 0:  # not the compiled function itself
            found.add(name_of[row])
    return np.array([name in found for name in name_of], np.bool_)


def _below(chosen: Mask, outer: Ids) -> Mask:
    """Whether each frame is one of some, or within one; outer frames come before inner ones."""
    result = chosen.copy()
    for row, above in enumerate(outer.tolist()):
        result[row] |= above >= 0 and result[above]
    return result


# -- programs that evaluate

_PROGRAM = "jit_{}"  # XLA's name for the program of a function
_SHAPES_OF_DATA = 2  # rollouts have several; one alone may be that of labels


def with_evaluation(
    trace: Trace, stage: IntArray, program: IntArray, names: Sequence[str]
) -> IntArray:
    """The stages, with those of the programs that run what is trained: evaluation or forward.

    Args:
        trace: with stacks; without them no program is known to evaluate.
        stage: of each event as far as it is known, -1 if not, shape (events,).
        program: number of the program of each compiled operation, -1 for others, shape (events,).
        names: of the functions of the programs, by number.
    """
    outer, kept = frames_below_call(trace)
    frame = np.append(kept, -1)[frames_of_events(trace)]
    differentiated = trace.events.text("scope").where(lambda text: "jvp(" in text)
    trained = _functions(trace["frames"], outer, frame[differentiated])
    training = [names[number] for number in np.unique(program[differentiated]) if number >= 0]
    shapes = trace.metadata.properties.get("program_shapes", {})
    result = stage.copy()
    known = np.unique(program[(stage >= 0) & (program >= 0)])
    for number in np.setdiff1d(program[program >= 0], known).tolist():
        rows = program == number
        if trained & _functions(trace["frames"], outer, frame[rows]):
            in_steps = np.intersect1d(trace.events["step"][rows], trace["steps"]["step"])
            least = 1 if len(in_steps) == len(trace["steps"]) else _SHAPES_OF_DATA
            fed = _shapes_fed(shapes, names[number], training)
            result[rows] = CODE["forward" if fed >= least else "evaluation"]
    return result


def _shapes_fed(
    shapes: Mapping[str, Mapping[str, Iterable[str]]], function: str, training: Iterable[str]
) -> int:
    """How many shapes of what one program makes are taken by those that differentiate."""
    makes = set(shapes.get(_PROGRAM.format(function), {}).get("makes", ()))
    taken = (shapes.get(_PROGRAM.format(name), {}).get("takes", ()) for name in training)
    return len(makes & set().union(*taken))


def _functions(frames: Table, outer: Ids, used: Ids) -> set[tuple[str, str]]:
    """The user's functions around some frames, by name and file, without the compiled function."""
    functions, files = frames.text("function"), frames.text("file")
    found: set[tuple[str, str]] = set()
    seen: set[int] = set()
    for row in np.unique(used[used >= 0]).tolist():
        while outer[row] >= 0 and row not in seen:
            seen.add(row)
            file = files[row] or ""
            if is_users(file):
                found.add((functions[row] or "", file))
            row = int(outer[row])
    return found
