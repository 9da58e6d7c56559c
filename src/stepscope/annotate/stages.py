"""Which stage of the training loop each event belongs to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.backward import is_backward, is_forward
from stepscope.annotate.launches import launch_of
from stepscope.annotate.marks import LOSS_OPERATOR, stage_of_names
from stepscope.annotate.steps import main_track
from stepscope.trace.nesting import depths, inherit
from stepscope.trace.schema import DEVICE_WORK, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]
CODE = {stage: code for code, stage in enumerate(STAGES)}
_NONE = -1
# What may be found inside a stage and still count as itself; anything else is part of that stage.
# Forward inside backward is recomputation; forward and backward inside an optimizer its closure.
_INSIDE = {
    "data_loading": (),
    "transfer": (),
    "forward": ("data_loading", "transfer", "loss", "zero_grad", "backward", "optimizer"),
    "loss": ("backward",),
    "zero_grad": (),
    "backward": ("optimizer",),
    "optimizer": ("forward", "loss", "zero_grad", "backward"),
    "other": STAGES,
}
_OTHER_THREAD_SHARE = 0.5


def assign_stages(trace: Trace) -> Trace:
    """Fill the stage of every event, and mark forward work that is repeated in backward.

    Events whose names tell a stage give it to all inside them. On a thread that runs autograd,
    everything is backward. What is left on the training loop's thread is told by its place between
    the stages found. Device work has the stage of its launch.

    Source: HOTLINE section 4.2.
    """
    events = trace.events
    own = _own_stages(trace)
    stage, recompute = _settle(events, own)
    stage = _fill_backward_threads(trace, stage)
    stage = _fill_main_thread(trace, stage)
    recompute |= _recorded_in_backward(events, stage)
    recompute = inherit(events["parent"], np.where(recompute, 1, _NONE)) > 0
    return _through_launches(trace, stage, recompute)


def _own_stages(trace: Trace) -> Codes:
    """What each event tells by itself, on CPU tracks."""
    events = trace.events
    own = stage_of_names(events.text("name"), events.text("category")).codes.copy()
    own[is_backward(events)] = CODE["backward"]
    on_device = (trace["tracks"]["kind"] == 1)[events["track"]]
    own[on_device] = _NONE
    return own.astype(np.int8)


def _settle(events: Table, own: Codes) -> tuple[Codes, Mask]:
    """Stages handed down from event to event, and which forward marks stood inside backward."""
    allowed = np.zeros((len(STAGES) + 1, len(STAGES)), np.bool_)
    for outer, inner in _INSIDE.items():
        allowed[CODE[outer], [CODE[stage] for stage in inner]] = True
    allowed[_NONE] = True  # the last row: nothing around
    parent, stage = events["parent"], own.copy()
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    for level in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)[1:]:
        outer = stage[parent[level]]
        keeps = (own[level] >= 0) & allowed[outer, own[level]]
        stage[level] = np.where(keeps, own[level], outer)
    recompute = (own == CODE["forward"]) & (stage == CODE["backward"])
    return stage, recompute


def _recorded_in_backward(events: Table, stage: Codes) -> Mask:
    """Operators that autograd records while it runs backward: forward work done again."""
    result: Mask = is_forward(events) & (stage == CODE["backward"])
    return result


def _fill_backward_threads(trace: Trace, stage: Codes) -> Codes:
    """Everything on a thread that mostly runs autograd, beside the training loop's, is backward."""
    events, tracks = trace.events, trace["tracks"]
    top = (events["parent"] < 0) & (tracks["kind"] != 1)[events["track"]]
    time = np.bincount(events["track"][top], events["duration_ns"][top], len(tracks))
    spent = top & (stage == CODE["backward"])
    backward = np.bincount(events["track"][spent], events["duration_ns"][spent], len(tracks))
    autograd = (backward > _OTHER_THREAD_SHARE * time) & (time > 0)
    autograd[main_track(trace)] = False
    return np.where(autograd[events["track"]] & (stage < 0), CODE["backward"], stage).astype(np.int8)


def _fill_main_thread(trace: Trace, stage: Codes) -> Codes:
    """Tell what no name tells by its place in its step."""
    events = trace.events
    category = events.text("category")
    on_cpu = (trace["tracks"]["kind"] != 1)[events["track"]]
    work = on_cpu & category.mask("cpu_op", "runtime", "annotation", "communication")
    work &= events["step"] >= 0
    work &= ~events.text("name").where(lambda name: name.startswith("ProfilerStep#"))
    loose = work & (stage < 0) & (events["track"] == main_track(trace))
    result = stage.copy()
    copies = _host_to_device(trace)
    order = np.argsort(events["step"], kind="stable")
    bounds = np.searchsorted(events["step"][order], np.append(trace["steps"]["step"], 2**31 - 1))
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        rows = np.sort(order[first:last])
        rows = rows[work[rows]]
        result[rows] = _by_place(events, rows, result[rows], loose[rows], copies[rows])
    elsewhere = work & (result < 0)
    result[elsewhere] = CODE["other"]
    return result


def _by_place(events: Table, rows: NDArray[np.intp], stage: Codes, loose: Mask, copies: Mask) -> Codes:
    """The stages of one step's events (in order of start), with the loose ones told by place."""
    start, end = events["start_ns"][rows], (events["start_ns"] + events["duration_ns"])[rows]
    result, known = stage.copy(), _Places(start, end, stage)
    trains = known.has("backward") or known.has("optimizer")
    backward, optimizer = known.first("backward"), known.first("optimizer")
    before_backward = start < min(backward, optimizer)
    result[loose & before_backward] = CODE["forward"]
    if known.has("forward"):
        result[loose & before_backward & (start < known.first("forward"))] = CODE["other"]
    if trains:
        after = loose & ~before_backward
        result[after] = CODE["other"]
        # Between backward and the optimizer gradients are unscaled and clipped.
        result[after & (start >= known.last("backward")) & (start < optimizer)] = CODE["optimizer"]
        between = after & (start < known.last("backward"))
        result[between] = CODE["backward"]
        if not known.has("optimizer"):
            result[after & ~between] = CODE["optimizer"]
    _name_loss(events, rows, result, loose & before_backward, known)
    result[loose & copies & (start < known.first_or("forward", start, result))] = CODE["transfer"]
    return result


class _Places:
    """When the stages that are known in a step begin and end."""

    def __init__(self, start: NDArray[np.int64], end: NDArray[np.int64], stage: Codes) -> None:
        self.start, self.end, self.stage = start, end, stage

    def has(self, stage: str) -> bool:
        return bool((self.stage == CODE[stage]).any())

    def first(self, stage: str) -> int:
        return int(self.start[self.stage == CODE[stage]].min(initial=np.iinfo(np.int64).max))

    def last(self, stage: str) -> int:
        return int(self.end[self.stage == CODE[stage]].max(initial=-1))

    def first_or(self, stage: str, start: NDArray[np.int64], result: Codes) -> int:
        """The first known event of a stage, else the first that its place tells."""
        if self.has(stage):
            return self.first(stage)
        return int(start[result == CODE[stage]].max(initial=-1)) + 1


def _name_loss(
    events: Table, rows: NDArray[np.intp], result: Codes, loose: Mask, known: _Places
) -> None:
    """Of the loose work before backward, what follows the model or computes a loss is the loss."""
    start = events["start_ns"][rows]
    if known.has("forward"):
        result[loose & (start >= known.last("forward"))] = CODE["loss"]
        return
    names = events.text("name").take(rows)
    computes = np.flatnonzero(loose & names.where(lambda name: bool(LOSS_OPERATOR.match(name))))
    if len(computes):
        result[loose & (start >= start[computes[0]])] = CODE["loss"]


def _host_to_device(trace: Trace) -> Mask:
    """Operators whose device work is nothing but copies from the host, and all inside them."""
    events = trace.events
    caller = launch_of(trace)
    device = np.flatnonzero(events.text("category").mask(*DEVICE_WORK) & (caller >= 0))
    copy = events.text("name").where(lambda name: name.startswith(("Memcpy HtoD", "CopyHostToDevice")))
    copies, others = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
    np.add.at(copies, caller[device], copy[device])
    np.add.at(others, caller[device], ~copy[device])
    for level in _levels_upward(events["parent"]):
        np.add.at(copies, events["parent"][level], copies[level])
        np.add.at(others, events["parent"][level], others[level])
    only = (copies > 0) & (others == 0) & events.text("category").mask("cpu_op", "runtime")
    result: Mask = inherit(events["parent"], np.where(only, 1, _NONE)) > 0
    return result


def _levels_upward(parent: NDArray[np.int32]) -> list[NDArray[np.intp]]:
    """Events that have a parent, grouped by depth, the deepest first."""
    depth = depths(parent)
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > 0]
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _through_launches(trace: Trace, stage: Codes, recompute: Mask) -> Trace:
    caller = launch_of(trace)
    linked = caller >= 0
    stage, recompute = stage.copy(), recompute.copy()
    stage[linked] = stage[caller[linked]]
    recompute[linked] = recompute[caller[linked]]
    return trace.with_events(stage=Text(stage, STAGES), recompute=recompute.astype(np.int8))
