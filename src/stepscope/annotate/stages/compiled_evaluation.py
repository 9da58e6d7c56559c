"""Which compiled programs evaluate: those that run what is trained, without differentiating it.

A program belongs to an evaluation if nothing in it is differentiated or updates anything, and if it
was traced through the functions of the user in which another program differentiates.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.origin_frames import frames_of_events, is_users
from stepscope.annotate.names.traced_frames import frames_below_call
from stepscope.arrays import Ids, IntArray, Mask
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


def in_evaluation(trace: Trace, stage: IntArray, program: IntArray) -> Mask:
    """Operations of programs that evaluate, bool, shape (events,).

    Args:
        trace: with stacks; without them no program is known to evaluate.
        stage: of each event as far as it is known, -1 if not, shape (events,).
        program: number of the program of each compiled operation, -1 for others, shape (events,).
    """
    outer, kept = frames_below_call(trace)
    frame = np.append(kept, -1)[frames_of_events(trace)]
    differentiated = trace.events.text("scope").where(lambda text: "jvp(" in text)
    trained = _functions(trace["frames"], outer, frame[differentiated])
    result = np.zeros(len(program), np.bool_)
    known = np.unique(program[(stage >= 0) & (program >= 0)])
    for number in np.setdiff1d(program[program >= 0], known).tolist():
        rows = program == number
        if trained & _functions(trace["frames"], outer, frame[rows]):
            result |= rows
    return result


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
