"""Which compiled operations are updates of an optimizer, by the stacks in which they were traced.

An update has no transformation in its scope. It is traced in a library of optimizers, or below a
function whose name says so.

Source: the packages optax, flax (nnx/training, training), equinox, jaxopt and keras.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.annotate.names.origin_frames import frames_of_events
from stepscope.arrays import Mask
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_FILE = re.compile(
    r"/(?:optax/(?:_src/(?!loss)|contrib/|transforms/|schedules/|tree_utils/|projections/)"
    r"|flax/(?:nnx/)?training/(?:optimizer|train_state)\.py$|equinox/_update\.py$|jaxopt/_src/"
    r"|keras/src/optimizers/|jax/example_libraries/optimizers\.py$)"
)
_FUNCTION = re.compile(
    r"(?:^|\.)(?:apply_(?:gradients?|grads?|updates?)|optimi[sz]er_(?:step|update)"
    r"|(?:sgd|adam|adamw|adagrad|rmsprop|lamb|lion)_(?:step|update))$"
)


def in_optimizer(trace: Trace) -> Mask:
    """Whether the largest part of each event was traced in an optimizer, bool, shape (events,)."""
    inside = np.append(_frames_inside(trace["frames"]), False)
    result: Mask = inside[frames_of_events(trace)]
    return result


def _frames_inside(frames: Table) -> Mask:
    """Whether each frame is in an optimizer; outer frames come before inner ones."""
    result = np.zeros(len(frames) + 1, np.bool_)  # the last one: no frame around
    rows = zip(frames.text("function"), frames.text("file"), frames["parent"].tolist(), strict=True)
    for row, (function, file, above) in enumerate(rows):
        own = _FILE.search(file or "") or _FUNCTION.search(function or "")
        result[row] = bool(own) or result[above]
    return result[:-1]
