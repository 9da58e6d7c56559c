"""Assign stages by position, between the events of a step whose stage is known.

docs/design/annotation.md, "Stages", has the rules. Position identifies a stage only within a micro-batch,
which has one forward and one backward pass, as the critic and the generator of a GAN have.

In all functions, `rows` are the CPU events of a step or a micro-batch in order of start, `stage` is
what is known of each, -1 if nothing, and `loop` and `unassigned` are those of the training loop's
thread, all of them and those without a stage yet; shape (n,) each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Codes8, Mask, Rows
from stepscope.facts.annotate.device.collectives import is_communication_call
from stepscope.facts.annotate.device.idle import blocks
from stepscope.facts.annotate.links.backward import is_forward
from stepscope.facts.annotate.links.launches import device_work, launch_of
from stepscope.facts.annotate.range_names import CODE, has_lines, is_layer, is_update, operators
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import is_inside, outermost, totals_inside
from stepscope.trace.row_order import begins_run, count_within, running_span
from stepscope.trace.schema import INFERENCE_STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_NEVER = np.iinfo(np.int64).max
_LOSS = re.compile(r"^aten::_?log_softmax$")  # the first part of a loss that no name covers
_BLOCK = "stepscope.block: "  # a recorder's mark of a block without gradients
_FROM_HOST = re.compile(r"Memcpy ?H(to|2)D|CopyHostToDevice|ze\w+\([MH]2D\)")  # copies
_PRODUCT = re.compile(r"^aten::(b?mm|matmul|baddbmm|\w*attention\w*)$")  # which a loss may call, too
_SEED = "aten::ones_like"  # backward() starts from a gradient of ones
_ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Launched:
    """What CPU events launch, each mask of shape (events,)."""

    copies_only: Mask
    waits_only: Mask
    computes: Mask
    has_optimizer: bool  # any step's; then one without is no update by hand


def work_launched(trace: Trace, has_optimizer: bool) -> Launched:
    """For each CPU event, whether it launches only copies from the host, only waits, and whether kernels.

    A branch on a result (`if norm > 1`), which waits too, belongs to what computes the result.
    """
    events, names = trace.events, trace.events.text("name")
    caller = launch_of(trace)
    device = np.flatnonzero(device_work(trace) & (caller >= 0))
    copy = names.where(lambda name: bool(_FROM_HOST.match(name)))
    kernel = events.text("category").mask("kernel", "communication")
    copies, others, kernels = (
        totals_inside(events["parent"], np.bincount(caller[device][which[device]], minlength=len(events)))
        for which in (copy, ~copy, kernel)
    )
    runtime = events.text("category").mask("runtime")
    blocking = runtime & (names.where(blocks) | names.mask("hipMemcpyWithStream"))
    waits = totals_inside(events["parent"], blocking.astype(np.int64))
    copies_only = (copies > 0) & (others == 0) & (runtime | events.text("category").mask("cpu_op"))
    waits_only = outermost(events["parent"], runtime | operators(events)) & ~names.mask("aten::is_nonzero")
    waits_only &= (waits > 0) & (copies + kernels == 0)
    waits_only |= names.where(is_communication_call)  # which wait for other ranks
    copies_only, waits_only = (is_inside(events["parent"], only) for only in (copies_only, waits_only))
    return Launched(copies_only, waits_only, kernels > 0, has_optimizer)


def assign_by_position(
    events: Table, rows: Rows, stage: Codes8, loop: Mask, unassigned: Mask, launched: Launched
) -> Codes8:
    """Assign the remaining events of one step by their position.

    Args:
        unassigned: events to assign, shape (n,); known forward and loss may become `other`.
        launched: what each of `events` launches.

    Source: HOTLINE section 4.2: a stage that is not detected spans between those that are.
    """
    known = _KnownStages(events, rows, stage)
    if not known.has("backward") and not known.has("optimizer"):
        return _without_training(known, unassigned, launched)
    marked = known.has("forward")
    forward = unmarked_forward(events, rows, stage, unassigned)
    parts = []
    for part in split_micro_batches(events, rows, stage, (loop & (stage == CODE["forward"])) | forward):
        stage_here = mark_eval_calls(events, rows[part], stage[part], loop[part])
        known = _KnownStages(events, rows[part], stage_here)
        here = unassigned[part], forward[part]
        parts.append(_assign_micro_batch(known, *here, launched, marked, follows=part.start > 0))
    return np.concatenate(parts)


def _assign_micro_batch(
    known: _KnownStages, unassigned: Mask, forward_work: Mask, launched: Launched, marked: bool, follows: bool
) -> Codes8:
    """One micro-batch.

    `marked` is whether the step marks its forward, `follows` whether another micro-batch is before.
    """
    # Where layers run between marks, these are of parts of the model, as FSDP's: others run around them.
    layers = forward_work & known.names.where(lambda name: is_layer(name) and not _PRODUCT.match(name))
    if (layers & (known.start > known.first("forward")) & (known.start < known.last("forward"))).any():
        known.stage = np.where(layers, CODE["forward"], known.stage).astype(np.int8)
    result = known.stage.copy()
    ahead = unassigned & (known.start < min(known.first("backward"), known.first("optimizer")))
    forward = _forward_begin(known, ahead, forward_work)
    result[ahead] = CODE["forward"]
    early = ahead & (known.start < forward)
    result[early] = CODE["other"]
    result[early & forward_work] = CODE["loss" if follows else "forward"]
    result[early & known.model_blocks] = CODE["forward"]
    by_hand = ahead & known.blocks & ~known.model_blocks  # updates of an average or a second model
    result[ahead & _begin_in(known.events, known.rows, by_hand)] = CODE["other"]
    _assign_loss(known, ahead & (known.start >= forward), marked, result)
    after = unassigned & ~ahead
    _assign_after_forward(known, after, forward_work & ~ahead, launched, result)
    loads = early | (after & (result == CODE["other"]))  # of this step's batch or of the next one's
    result[loads & launched.copies_only[known.rows]] = CODE["transfer"]
    return result


class _KnownStages:
    """When the known stages of a step begin and end."""

    def __init__(self, events: Table, rows: Rows, stage: Codes8) -> None:
        self.events, self.rows, self.stage = events, rows, stage
        self.start, self.end = events.spans(rows)
        self.names = events.text("name").take(rows)
        self.categories = events.text("category").take(rows)

    @cached_property
    def blocks(self) -> Mask:
        """Blocks without gradients."""
        return self.names.where(lambda name: name.startswith(_BLOCK))

    @cached_property
    def model_blocks(self) -> Mask:
        """Blocks without gradients around calls of a model, such as a teacher's."""
        begins = np.sort(self.start[self.stage == CODE["forward"]])
        return self.blocks & (count_within(begins, self.start, self.end) > 0)

    def has(self, stage: str) -> bool:
        return bool((self.stage == CODE[stage]).any())

    def first(self, stage: str) -> int:
        return int(self.start[self.stage == CODE[stage]].min(initial=_NEVER))

    def last(self, stage: str) -> int:
        return int(self.end[self.stage == CODE[stage]].max(initial=-1))


def _without_training(known: _KnownStages, unassigned: Mask, launched: Launched) -> Codes8:
    """A step that does not train is forward from its first kernel to its last.

    What a server does between its iterations is `other`: scheduling, sampling. So is everything
    where only ranges are known and nothing that computes.
    """
    result = known.stage.copy()
    if any(known.has(stage) for stage in INFERENCE_STAGES):
        result[unassigned] = CODE["other"]
        return result
    computes = (unassigned & launched.computes[known.rows]) | (known.stage == CODE["forward"])
    naming = ("cpu_op", "annotation") if computes.any() else ("cpu_op",)
    result[unassigned] = CODE["forward" if known.categories.mask(*naming).any() else "other"]
    if computes.any():
        first, last = known.start[computes].min(), known.end[computes].max()
        result[unassigned & ((known.start < first) | (known.start >= last))] = CODE["other"]
    result[unassigned & launched.copies_only[known.rows]] = CODE["transfer"]
    return result


def _forward_begin(known: _KnownStages, ahead: Mask, forward_work: Mask) -> int:
    """When forward begins: at its first mark, else at the first operator with a gradient.

    Where nothing runs backward and no layer runs, others compute the gradients, such as the workers
    of a parameter server.
    """
    if known.has("forward"):
        return known.first("forward")
    partners = known.events["forward_event"][known.rows]
    has_gradient = ahead & np.isin(known.rows, partners[partners >= 0])
    if not has_gradient.any():
        computes = known.has("backward") or (ahead & forward_work).any()
        return int(known.start[ahead].min(initial=_NEVER)) if computes else _NEVER
    event = int(known.rows[has_gradient][0])
    unassigned, parent = set(known.rows[ahead].tolist()), known.events["parent"]
    while int(parent[event]) in unassigned:
        event = int(parent[event])
    return int(known.events["start_ns"][event])


def _assign_loss(known: _KnownStages, ahead: Mask, marked: bool, result: Codes8) -> None:
    """After the model, or from the first loss operator on, everything is loss until backward.

    A micro-batch without a model call, in a step that marks its calls, is all loss: a penalty.
    """
    if marked:
        after = ahead & (known.start >= known.last("forward"))
    else:
        computes = known.start[ahead & known.names.where(lambda name: bool(_LOSS.match(name)))]
        begin = min(int(computes.min(initial=_NEVER)), known.first("loss"))
        after = ahead & (known.start >= begin)
    result[after] = CODE["loss"]
    result[after & known.names.where(is_communication_call)] = CODE["other"]
    # A user's range with another name is something else.
    ranges = after & known.categories.mask("annotation") & ~known.model_blocks
    ranges &= ~_prepare_loss(known, after)
    result[after & _begin_in(known.events, known.rows, ranges)] = CODE["other"]
    seed = np.flatnonzero(after & known.names.mask(_SEED))[-1:]
    begin = known.first("backward")
    if len(seed) and known.start[after].max() <= known.end[seed[0]]:
        begin = int(known.start[seed[0]])
        result[after & (known.start >= begin)] = CODE["backward"]
    result[_around_backward(known, after, begin)] = CODE["backward"]


def _around_backward(known: _KnownStages, after: Mask, begin: int) -> Mask:
    """Ranges around backward alone: what they do between its nodes is backward too."""
    lines = known.names.where(has_lines)
    ranges = lines | known.categories.mask("annotation")
    operators = after & known.categories.mask("cpu_op") & ~lines & (known.start < begin)
    ends = (known.end > known.first("backward")) & (known.end <= known.first("optimizer"))
    begins = known.start > known.start[operators].max(initial=-1)
    return after & ranges & begins & ends


def _prepare_loss(known: _KnownStages, after: Mask) -> Mask:
    """Blocks without gradients that the loss goes on from, and that change nothing in place.

    Such as the matching of predictions and targets in detection; metrics come after the loss.
    """
    blocks = after & known.blocks
    if not blocks.any():
        return blocks
    recorded = known.start[after & is_forward(known.events, known.rows)]
    updates = np.sort(known.start[is_update(known.events, known.rows) | _copies(known)])
    changes = count_within(updates, known.start, known.end) > 0
    return blocks & ~changes & (known.end <= recorded.max(initial=-1))


def _copies(known: _KnownStages) -> Mask:
    """Tensors that the program itself copies over others, as a second model's parameters."""
    parent, events = known.events["parent"][known.rows], known.events
    called = (parent >= 0) & events.text("category").take(parent).mask("cpu_op")
    called &= ~events.text("name").take(parent).where(has_lines)
    return known.names.mask("aten::copy_") & ~called


def _begin_in(events: Table, rows: Rows, chosen: Mask) -> Mask:
    """Events that begin while one of the chosen runs, themselves included."""
    return Intervals(*events.spans(rows[chosen])).cover(events["start_ns"][rows])


def _assign_after_forward(
    known: _KnownStages, after: Mask, forward_work: Mask, launched: Launched, result: Codes8
) -> None:
    """Between backward and optimizer it is optimizer: unscaling and clipping of gradients.

    What waits there is `other`, as elsewhere, but not after gradients were unscaled: their scaler
    reads whether they are finite. Without an optimizer it is an update by hand, but not among the
    passes of a pipelined schedule, nor where other steps have one (accumulated gradients) or fewer
    operators follow than there are gradients, unless something is updated.
    """
    end = known.last("backward")
    result[after] = CODE["other"]
    result[after & (known.start < end)] = CODE["backward"]
    result[forward_work] = CODE["forward"]
    until = known.first("optimizer") if known.has("optimizer") else _NEVER
    left = after & ~forward_work & (known.start >= end) & (known.start < until)
    goes_on = ((known.stage == CODE["forward"]) | forward_work) & (known.start >= end)
    is_little = (left & known.categories.mask("cpu_op")).sum() < known.names.mask(_ACCUMULATES).sum()
    by_hand = not (launched.has_optimizer or goes_on.any() or is_little)
    if until < _NEVER or by_hand or is_update(known.events, known.rows[left]).any():
        unscaled = left & known.names.where(lambda name: name.startswith("aten::_amp_"))
        waits = launched.waits_only[known.rows] & (known.start < known.start[unscaled].min(initial=_NEVER))
        result[left & ~waits] = CODE["optimizer"]


# -- the passes of a step


def split_micro_batches(events: Table, rows: Rows, stage: Codes8, forward: Mask) -> list[slice]:
    """Split a step where forward work follows backward (or optimizer) and leads to more backward.

    The slices together cover `rows`, in order; `forward` is the forward work of the loop's thread,
    marked or recognized (see `unmarked_forward`).
    """
    start, end = events.spans(rows)
    closes = (stage == CODE["backward"]) | (stage == CODE["optimizer"])
    over = np.append(-1, np.maximum.accumulate(np.where(closes, end, -1))[:-1])
    backward = np.flatnonzero(stage == CODE["backward"])
    begins = forward & (over >= 0) & (over <= start)
    begins &= np.arange(len(rows)) < backward.max(initial=-1)
    cuts = np.unique(np.searchsorted(start, over[begins])).tolist()
    return [slice(*pair) for pair in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


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
    begins, ends = events.spans(rows[calls[eval_call]])
    inside_eval = running_span(begins, ends, start) >= 0
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
    recorded = loop & is_forward(events, rows)
    return count_within(events["start_ns"][rows[recorded]], *events.spans(rows[calls])) > 0


# -- forward work that nothing marks


def unmarked_forward(events: Table, rows: Rows, stage: Codes8, unassigned: Mask) -> Mask:
    """Operators of the training loop's thread that are forward work, wherever they are."""
    partners = events["forward_event"][rows]
    linked = unassigned & np.isin(rows, partners[partners >= 0])
    layer = unassigned & events.text("name").take(rows).where(is_layer)
    recorded = is_forward(events, rows)
    layer &= recorded if recorded.any() else ~_begin_in(events, rows, stage == CODE["backward"])
    if (stage == CODE["forward"]).any():  # what marks some of a model marks most of it
        layer &= ~_before_update(events, rows, stage)
    found = linked | layer
    return found | _between(events, rows, found, unassigned)


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
