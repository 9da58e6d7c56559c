"""Which stage of the training loop each event belongs to."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.backward import is_backward, is_forward
from stepscope.annotate.launches import launch_of
from stepscope.annotate.marks import CODE, is_step, stage_of_names
from stepscope.annotate.places import tell_by_place, work_launched
from stepscope.annotate.scopes import stages_by_scope
from stepscope.annotate.steps import main_track
from stepscope.annotate.tracks import on_host
from stepscope.trace.nesting import depths, inherit
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]
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
    the stages found. Device work has the stage of its launch. What was compiled tells its stage
    itself, by its named scope, wherever it was launched from.

    Source: HOTLINE section 4.2.
    """
    events = trace.events
    by_scope, repeated = stages_by_scope(trace)
    own = _own_stages(trace, by_scope)
    stage, recompute = _settle(events, own)
    stage = _fill_backward_threads(trace, stage)
    stage = _fill_main_thread(trace, stage, by_scope)
    recompute |= _recorded_in_backward(events, stage) | repeated
    recompute = inherit(events["parent"], np.where(recompute, 1, _NONE)) > 0
    return _through_launches(trace, stage, recompute, by_scope)


def _own_stages(trace: Trace, by_scope: Codes) -> Codes:
    """What each event tells by itself, on CPU tracks."""
    events = trace.events
    own = stage_of_names(events.text("name"), events.text("category")).codes.copy()
    own[is_backward(events)] = CODE["backward"]
    own = np.where(by_scope >= 0, by_scope, own)
    own[~on_host(trace)] = _NONE
    return own.astype(np.int8)


def _settle(events: Table, own: Codes) -> tuple[Codes, Mask]:
    """Stages handed down from event to event, and which forward marks stood inside backward."""
    allowed = np.zeros((len(STAGES) + 1, len(STAGES)), np.bool_)
    for around, inside in _INSIDE.items():
        allowed[CODE[around], [CODE[one] for one in inside]] = True
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
    top = (events["parent"] < 0) & on_host(trace)
    time = np.bincount(events["track"][top], events["duration_ns"][top], len(tracks))
    spent = top & (stage == CODE["backward"])
    backward = np.bincount(events["track"][spent], events["duration_ns"][spent], len(tracks))
    autograd = (backward > _OTHER_THREAD_SHARE * time) & (time > 0)
    autograd[main_track(trace)] = False
    return np.where(autograd[events["track"]] & (stage < 0), CODE["backward"], stage).astype(
        np.int8
    )


def _fill_main_thread(trace: Trace, stage: Codes, by_scope: Codes) -> Codes:
    """Tell what no name tells by its place in its step.

    Calls that start a compiled step are other: they are of no stage, or of all.
    """
    events = trace.events
    result = stage.copy()
    work = _host_work(trace)
    launched = work_launched(trace)
    loop = events["track"] == main_track(trace)
    loose = work & (stage < 0) & loop
    compiled = events["step"][by_scope == CODE["backward"]]
    loose &= ~np.isin(events["step"], compiled)
    busy = np.flatnonzero(work)
    order = busy[np.argsort(events["step"][busy], kind="stable")]
    bounds = np.searchsorted(events["step"][order], np.append(trace["steps"]["step"], 2**31 - 1))
    for first, last in pairwise(bounds.tolist()):
        rows = order[first:last]
        result[rows] = tell_by_place(events, rows, result[rows], loop[rows], loose[rows], launched)
    elsewhere = work & (result < 0)
    result[elsewhere] = CODE["other"]
    return result


def _host_work(trace: Trace) -> Mask:
    """What the CPU does in steps, but for Python frames, whose stage only their names can tell."""
    events = trace.events
    work = on_host(trace) & events.text("category").mask(
        "cpu_op", "runtime", "annotation", "communication"
    )
    step = events.text("name").where(is_step)
    result: Mask = work & on_host(trace) & (events["step"] >= 0) & ~step
    return result


def _through_launches(trace: Trace, stage: Codes, recompute: Mask, by_scope: Codes) -> Trace:
    caller = launch_of(trace)
    linked = caller >= 0
    stage, recompute = stage.copy(), recompute.copy()
    stage[linked] = stage[caller[linked]]
    stage = np.where(by_scope >= 0, by_scope, stage).astype(np.int8)
    recompute[linked] |= recompute[caller[linked]]
    return trace.with_events(stage=Text(stage, STAGES), recompute=recompute.astype(np.int8))
