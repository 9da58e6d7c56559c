"""Forward work that nothing marks, among backward passes: a pipelined schedule, accumulation.

In a pipelined schedule (1F1B, interleaved, zero-bubble, DualPipe) forward and backward passes of
different micro-batches follow each other, and a recording may hold one without the other. So place
in time says little: forward is what backward returns to, else a run of operators of layers that
autograd recorded, or may have recorded if the file has no sequence numbers.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.annotate.names.autograd_marks import is_forward
from stepscope.annotate.names.range_names import CODE
from stepscope.arrays import Codes8, Mask, Rows
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import begins_run
from stepscope.trace.table import Table

# Operators of layers: training loops run them in the model, hardly ever around it.
_LAYER = re.compile(
    r"^aten::(linear|t?addmm|b?mm|matmul|baddbmm|conv\w*|_?convolution|embedding(_bag)?|lstm|gru"
    r"|(native_|cudnn_|miopen_)?(batch|layer|group|instance|rms)_norm|\w*attention\w*|scaled_mm)$"
)
_UPDATE = re.compile(r"^aten::(_foreach_|_fused_)?(add|sub|mul|div|lerp|addcdiv|addcmul)_$"
                     r"|^aten::(_foreach|_fused)_\w+$")  # fmt: skip


def unmarked_forward(events: Table, rows: Rows, stage: Codes8, unassigned: Mask) -> Mask:
    """Operators of the training loop's thread that are forward work, wherever they are.

    Args:
        events: all events.
        rows: the step's CPU events, in order of start, shape (n,).
        stage: their known stages, -1 if unknown, shape (n,).
        unassigned: events of the training loop's thread without a stage yet, shape (n,).

    Returns:
        bool, shape (n,).
    """
    partners = events["forward_event"][rows]
    linked = unassigned & np.isin(rows, partners[partners >= 0])
    layer = unassigned & events.text("name").take(rows).where(lambda name: bool(_LAYER.match(name)))
    recorded = is_forward(events, rows)
    layer &= recorded if recorded.any() else ~_during_backward(events, rows, stage)
    if (stage == CODE["forward"]).any():  # what marks some of a model marks most of it
        layer &= ~_before_update(events, rows, stage)
    found = linked | layer
    return found | _between(events, rows, found, unassigned)


def is_update(events: Table, rows: Rows) -> Mask:
    """Operators that change parameters in place, as an update by hand does, bool, shape (n,)."""
    return events.text("name").take(rows).where(lambda name: bool(_UPDATE.match(name)))


def _during_backward(events: Table, rows: Rows, stage: Codes8) -> Mask:
    """Whether each event begins while backward work runs."""
    start = events["start_ns"][rows]
    backward = stage == CODE["backward"]
    spans = Intervals(start[backward], (start + events["duration_ns"][rows])[backward])
    result: Mask = spans.within(start, start + 1) > 0
    return result


def _before_update(events: Table, rows: Rows, stage: Codes8) -> Mask:
    """Events between the last backward work and an optimizer: they process gradients."""
    start = events["start_ns"][rows]
    end = start + events["duration_ns"][rows]
    backward = end[stage == CODE["backward"]]
    last = backward.max() if len(backward) else np.iinfo(np.int64).max
    update = start[(stage == CODE["optimizer"]) & (start >= last)]
    until = update.min() if len(update) else last
    result: Mask = (start >= last) & (start < until)
    return result


def _between(events: Table, rows: Rows, found: Mask, unassigned: Mask) -> Mask:
    """The rest of each run of unassigned events, from its first forward operator to its last."""
    start = events["start_ns"][rows]
    run = np.cumsum(begins_run(unassigned.astype(np.int8)))
    count = int(run[-1]) + 1 if len(run) else 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, run[found], start[found])
    np.maximum.at(last, run[found], (start + events["duration_ns"][rows])[found])
    result: Mask = unassigned & (start >= first[run]) & (start < last[run])
    return result
