"""The passes of a step: micro-batches, calls that do not train, and forward work without a mark.

A micro-batch has one forward and one backward pass; so have the critic and the generator of a GAN,
and a second loss. Position identifies a stage only within a micro-batch.

Validation, rollouts and sampling run without gradients: none of their operators has a sequence
number, and the same model is called with gradients in the same micro-batch. A model that never has
gradients, such as a teacher, is part of forward.

In a pipelined schedule (1F1B, interleaved, zero-bubble, DualPipe) forward and backward passes of
different micro-batches follow each other, and a recording may hold one without the other. So place
in time says little: forward is what backward returns to, else a run of operators of layers that
autograd recorded, or may have recorded if the file has no sequence numbers.

In all functions, and in `stage_by_position`, `rows` are the CPU events of a step or a micro-batch in
order of start, `stage` is what is known of each, -1 if nothing, and `loop` and `unassigned` are those
of the training loop's thread, all of them and those without a stage yet; shape (n,) each.
"""

import re

import numpy as np

from stepscope.base.arrays import Codes8, Mask, Rows
from stepscope.facts.annotate.links.backward import is_forward
from stepscope.facts.annotate.range_names import CODE
from stepscope.trace.intervals import Intervals
from stepscope.trace.row_order import begins_run
from stepscope.trace.table import Table


def split_micro_batches(
    events: Table, rows: Rows, stage: Codes8, unassigned: Mask, unmarked: Mask
) -> list[slice]:
    """Split a step where forward work follows backward (or optimizer) and leads to more backward.

    Args:
        unmarked: those of them that are forward work, shape (n,); see `unmarked_forward`.

    Returns:
        Slices of `rows` that together cover it, in order.
    """
    start, end = events.spans(rows)
    closes = (stage == CODE["backward"]) | (stage == CODE["optimizer"])
    over = np.append(-1, np.maximum.accumulate(np.where(closes, end, -1))[:-1])
    backward = np.flatnonzero(stage == CODE["backward"])
    begins = _leads_to_backward(events, rows, stage, unassigned, unmarked) & (over >= 0) & (over <= start)
    begins &= np.arange(len(rows)) < backward.max(initial=-1)
    cuts = np.unique(np.searchsorted(start, over[begins])).tolist()
    return [slice(*pair) for pair in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def _leads_to_backward(events: Table, rows: Rows, stage: Codes8, unassigned: Mask, unmarked: Mask) -> Mask:
    """Forward work on the training loop's thread: marked forward, or recognized without a mark."""
    on_loop = (
        events["track"][rows] == events["track"][rows[unassigned][:1]] if unassigned.any() else unassigned
    )
    marked: Mask = (stage == CODE["forward"]) & on_loop
    return marked | unmarked


# -- calls that do not train


def mark_eval_calls(events: Table, rows: Rows, stage: Codes8, loop: Mask) -> Codes8:
    """Change forward and loss that lead to no gradient to `other`, in one micro-batch."""
    start = events["start_ns"][rows]
    calls = _outermost(events, rows, loop & (stage == CODE["forward"]))
    recorded = _recorded_in(events, rows, loop, calls)
    name = events["name"][rows[calls]]
    eval_call = ~recorded & np.isin(name, name[recorded])
    if not eval_call.any():
        return stage
    begins = start[calls[eval_call]]
    ends = begins + events["duration_ns"][rows[calls[eval_call]]]
    latest = np.searchsorted(begins, start, side="right") - 1
    inside_eval = (latest >= 0) & (start < ends[latest])
    # The losses of a validation run between its calls and after the last one.
    inside_eval |= (start >= begins[0]) & (start < start[calls[recorded]][0])
    inside_eval &= loop & np.isin(stage, (CODE["forward"], CODE["loss"]))
    return np.where(inside_eval, CODE["other"], stage).astype(np.int8)


def _outermost(events: Table, rows: Rows, forward: Mask) -> Rows:
    ranges = np.flatnonzero(forward & events.text("category").take(rows).mask("annotation"))
    start, end = events.spans(rows[ranges])
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])
    return ranges[start >= reach[: len(ranges)]]


def _recorded_in(events: Table, rows: Rows, loop: Mask, calls: Rows) -> Mask:
    """Whether autograd recorded any operator in each call, bool, shape (calls,)."""
    recorded = loop & (events["sequence"][rows] >= 0) & (events["forward_thread"][rows] <= 0)
    at = events["start_ns"][rows[recorded]]
    start, end = events.spans(rows[calls])
    return np.searchsorted(at, end) > np.searchsorted(at, start)


# -- forward work that nothing marks

# Operators of layers: training loops run them in the model, hardly ever around it.
_LAYER = re.compile(
    r"^aten::(linear|t?addmm|b?mm|matmul|baddbmm|conv\w*|_?convolution|embedding(_bag)?|lstm|gru"
    r"|(native_|cudnn_|miopen_)?(batch|layer|group|instance|rms)_norm|\w*attention\w*|scaled_mm)$"
)
_UPDATE = re.compile(
    r"^aten::(_foreach_|_fused_)?(add|sub|mul|div|lerp|addcdiv|addcmul)_$"
    r"|^aten::(_foreach|_fused)_\w+$"
)


def unmarked_forward(events: Table, rows: Rows, stage: Codes8, unassigned: Mask) -> Mask:
    """Operators of the training loop's thread that are forward work, wherever they are."""
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
    start = events["start_ns"][rows]
    backward = stage == CODE["backward"]
    spans = Intervals(*events.spans(rows[backward]))
    return spans.within(start, start + 1) > 0


def _before_update(events: Table, rows: Rows, stage: Codes8) -> Mask:
    """Events between the last backward work and an optimizer: they process gradients."""
    start, end = events.spans(rows)
    backward = end[stage == CODE["backward"]]
    last = backward.max() if len(backward) else np.iinfo(np.int64).max
    update = start[(stage == CODE["optimizer"]) & (start >= last)]
    until = update.min() if len(update) else last
    return (start >= last) & (start < until)


def _between(events: Table, rows: Rows, found: Mask, unassigned: Mask) -> Mask:
    """The rest of each run of unassigned events, from its first forward operator to its last."""
    start, end = events.spans(rows)
    run = np.cumsum(begins_run(unassigned.astype(np.int8)))
    count = int(run[-1]) + 1 if len(run) else 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(first, run[found], start[found])
    np.maximum.at(last, run[found], end[found])
    return unassigned & (start >= first[run]) & (start < last[run])
