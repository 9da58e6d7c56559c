"""Stages told by place: what stands between the events of a step whose stage is known."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.asides import set_asides_apart
from stepscope.annotate.launches import launch_of
from stepscope.annotate.marks import CODE
from stepscope.annotate.tracks import device_work
from stepscope.annotate.turns import turns
from stepscope.trace.nesting import depths, inherit
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]
_NEVER = np.iinfo(np.int64).max
_LOSS = re.compile(r"^aten::_?log_softmax$")  # the first part of a loss that no name covers
_SEED = "aten::ones_like"  # backward() starts from a gradient of ones


@dataclass(frozen=True)
class Launched:
    """What the work that CPU events launch is made of, shape (events,) each."""

    copies_only: Mask
    computes: Mask


def work_launched(trace: Trace) -> Launched:
    """For each CPU event, whether all inside it launches only copies from the host, or more."""
    events = trace.events
    caller = launch_of(trace)
    device = np.flatnonzero(device_work(trace) & (caller >= 0))
    copy = events.text("name").where(
        lambda name: name.startswith(("Memcpy HtoD", "MemcpyH2D", "CopyHostToDevice"))
    )
    kernel = events.text("category").mask("kernel", "communication")
    levels = _levels_upward(events["parent"])
    copies, others, kernels = (
        _counted_upward(events["parent"], levels, caller[device], which[device])
        for which in (copy, ~copy, kernel)
    )
    only = (copies > 0) & (others == 0) & events.text("category").mask("cpu_op", "runtime")
    return Launched(inherit(events["parent"], np.where(only, 1, -1)) > 0, kernels > 0)


def _counted_upward(
    parent: NDArray[np.int32], levels: list[Rows], caller: NDArray[np.int32], counts: Mask
) -> NDArray[np.int64]:
    """How many of the marked launches each event and all inside it make."""
    total = np.bincount(caller[counts], minlength=len(parent))
    for level in levels:
        np.add.at(total, parent[level], total[level])
    return total


def _levels_upward(parent: NDArray[np.int32]) -> list[Rows]:
    """Events that have a parent, grouped by depth, the deepest first."""
    depth = depths(parent)
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > 0]
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def tell_by_place(
    events: Table, rows: Rows, stage: Codes, loop: Mask, loose: Mask, launched: Launched
) -> Codes:
    """The stages of one step, with those of its loose events told by their place.

    Args:
        events: all events.
        rows: the step's CPU events, in order of start, shape (n,).
        stage: what is known of them, -1 where nothing, shape (n,).
        loop: those of the training loop's thread, shape (n,).
        loose: those to tell, shape (n,); of the others forward and loss may turn out to be beside
            training.
        launched: what each of `events` launches.

    Returns:
        int8, shape (n,).

    Source: HOTLINE section 4.2: a stage that is not detected spans between those that are.
    """
    known = _Known(events, rows, stage)
    if not known.has("backward") and not known.has("optimizer"):
        return _without_training(known, loose, launched)
    marked = known.has("forward")
    parts = []
    for turn in turns(events, rows, stage, loose):
        told = set_asides_apart(events, rows[turn], stage[turn], loop[turn])
        parts.append(_tell_turn(_Known(events, rows[turn], told), loose[turn], launched, marked))
    return np.concatenate(parts)


def _tell_turn(known: _Known, loose: Mask, launched: Launched, marked: bool) -> Codes:
    """One pass through forward and backward; `marked` is whether the step marks its forward."""
    result = known.stage.copy()
    ahead = loose & (known.start < min(known.first("backward"), known.first("optimizer")))
    forward = _forward_begin(known, ahead)
    result[ahead] = CODE["forward"]
    result[ahead & (known.start < forward)] = CODE["other"]
    _tell_loss(known, ahead & (known.start >= forward), marked, result)
    _tell_after(known, loose & ~ahead, result)
    early = ahead & (known.start < forward)
    result[early & launched.copies_only[known.rows]] = CODE["transfer"]
    return result


class _Known:
    """When the stages that are known in a step begin and end."""

    def __init__(self, events: Table, rows: Rows, stage: Codes) -> None:
        self.events, self.rows, self.stage = events, rows, stage
        self.start = events["start_ns"][rows]
        self.end = self.start + events["duration_ns"][rows]
        self.names = events.text("name").take(rows)

    def has(self, stage: str) -> bool:
        return bool((self.stage == CODE[stage]).any())

    def first(self, stage: str) -> int:
        return int(self.start[self.stage == CODE[stage]].min(initial=_NEVER))

    def last(self, stage: str) -> int:
        return int(self.end[self.stage == CODE[stage]].max(initial=-1))


def _without_training(known: _Known, loose: Mask, launched: Launched) -> Codes:
    """A step that does not train is forward from its first computing on the device to its last."""
    result = known.stage.copy()
    named = known.events.text("category").mask("cpu_op", "annotation")[known.rows]
    result[loose] = CODE["forward" if named.any() else "other"]
    computes = (loose & launched.computes[known.rows]) | (known.stage == CODE["forward"])
    if computes.any():
        first, last = known.start[computes].min(), known.end[computes].max()
        result[loose & ((known.start < first) | (known.start >= last))] = CODE["other"]
    result[loose & launched.copies_only[known.rows]] = CODE["transfer"]
    return result


def _forward_begin(known: _Known, ahead: Mask) -> int:
    """When forward begins: at its first mark, else at the first operator backward returns to."""
    if known.has("forward"):
        return known.first("forward")
    partners = known.events["forward_event"][known.rows]
    returned_to = ahead & np.isin(known.rows, partners[partners >= 0], kind="table")
    if not returned_to.any():
        return int(known.start[ahead].min(initial=_NEVER))
    event = int(known.rows[returned_to][0])
    loose, parent = set(known.rows[ahead].tolist()), known.events["parent"]
    while int(parent[event]) in loose:
        event = int(parent[event])
    return int(known.events["start_ns"][event])


def _tell_loss(known: _Known, ahead: Mask, marked: bool, result: Codes) -> None:
    """After the model, or from the first loss operator on, it is loss until backward begins.

    In a turn without the model, of a step that marks its calls, all of it is: a penalty.
    """
    if marked:
        after = ahead & (known.start >= known.last("forward"))
    else:
        computes = known.start[ahead & known.names.where(lambda name: bool(_LOSS.match(name)))]
        begin = min(int(computes.min(initial=_NEVER)), known.first("loss"))
        after = ahead & (known.start >= begin)
    result[after] = CODE["loss"]
    ranges = after & known.events.text("category").mask("annotation")[known.rows]
    for begin, end in zip(known.start[ranges], known.end[ranges], strict=True):
        # A range that its author named otherwise is something else, as the next batch's exchange.
        result[after & (known.start >= begin) & (known.start < end)] = CODE["other"]
    seed = np.flatnonzero(after & known.names.mask(_SEED))[-1:]
    if len(seed) and known.start[after].max() <= known.end[seed[0]]:
        result[after & (known.start >= known.start[seed[0]])] = CODE["backward"]


def _tell_after(known: _Known, after: Mask, result: Codes) -> None:
    """Between backward and optimizer gradients are unscaled and clipped: the optimizer's part."""
    end = known.last("backward")
    result[after] = CODE["other"]
    result[after & (known.start < end)] = CODE["backward"]
    until = known.first("optimizer") if known.has("optimizer") else _NEVER
    result[after & (known.start >= end) & (known.start < until)] = CODE["optimizer"]
