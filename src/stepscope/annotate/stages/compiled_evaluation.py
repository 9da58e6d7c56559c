"""Which compiled programs evaluate: those that run what is trained, without differentiating it.

A program belongs to an evaluation if nothing in it is differentiated or updates anything, and if it
was traced through the functions of the user in which another program differentiates. If it makes
what that one takes, it is part of training, and forward: the rollouts of reinforcement learning,
and a teacher's targets. This can be seen in the shapes of its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from stepscope.annotate.names.origin_frames import frames_of_events, is_users
from stepscope.annotate.names.range_names import CODE
from stepscope.annotate.names.traced_frames import frames_below_call
from stepscope.arrays import Ids, IntArray
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

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
