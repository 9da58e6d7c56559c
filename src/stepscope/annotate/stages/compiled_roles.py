"""The stages of compiled operations outside of the two passes, by what they are for.

One program may do all that a training loop does: shuffle an epoch, train on its batches, evaluate.
What an operation takes, and what takes it, is known of each (`origins.role`). Whether it runs what
is trained shows in its stack: it was traced within a function of the user's that multiplies
matrices in one of the two passes.
"""

from __future__ import annotations

import numpy as np

from stepscope.annotate.names.origin_frames import frames_of_events, is_users
from stepscope.annotate.names.range_names import CODE
from stepscope.annotate.names.traced_frames import frames_below_call
from stepscope.arrays import Ids, IntArray, Mask
from stepscope.trace.schema import PRODUCT_KINDS, ROLES
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
