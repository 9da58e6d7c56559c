"""Which stage of the training loop each event belongs to."""

import re

import numpy as np

from stepscope.base.arrays import Codes8, Mask, Rows
from stepscope.base.parallel import in_threads
from stepscope.facts.annotate.device.collectives import is_communication_call, time_by_track
from stepscope.facts.annotate.jax.stages import passes_are_unknown, stages_by_scope, warn_unknown_passes
from stepscope.facts.annotate.links.backward import is_backward, recomputed
from stepscope.facts.annotate.links.launches import caller_of, on_host
from stepscope.facts.annotate.range_names import CODE, is_layer, stage_of_names
from stepscope.facts.annotate.stages.optimizers import release_closures
from stepscope.facts.annotate.stages.stage_by_position import assign_by_position, work_launched
from stepscope.facts.annotate.steps.inference import stages_by_iteration
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.step_table import step_marks
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import holds, inherit, is_inside, passed_down
from stepscope.trace.row_order import last_begun, rows_by_key
from stepscope.trace.schema import COMPUTING, INFERENCE_STAGES, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_NONE = -1
# Stages that stay themselves inside another stage; anything else becomes part of the outer stage.
# Forward inside backward is recomputation; inside an optimizer it is its closure.
_INSIDE = {
    "data_loading": (),
    "transfer": (),
    "forward": ("data_loading", "transfer", "loss", "zero_grad", "backward", "optimizer", *INFERENCE_STAGES),
    "loss": ("backward",),
    "zero_grad": (),
    "backward": ("optimizer",),
    "optimizer": ("forward", "loss", "zero_grad", "backward"),
    **dict.fromkeys((*INFERENCE_STAGES, "evaluation", "checkpointing"), ()),
    "other": STAGES,
}
_OTHER_THREAD_SHARE = 0.5  # of its time: a thread of autograd runs little but backward
_INSIDE_BACKWARD = 0.9  # of a thread's launches, while the training loop's thread is in backward
_NAMED_SHARE = 0.5  # of device time, at least: single kernels such as softmax_backward name no pass
_OF_WEIGHTS = re.compile(r"(?i)(?<![a-z])(weights?|[dw]grad)(?![a-z])")  # gradients in a pass of their own
_COMPILED = ("Torch-Compiled Region", "CompiledFunction")  # calls of a compiled model
_AUTOGRAD_THREAD = re.compile(r"^(.*[ (])?pt_autograd_\d+([ )]|$)")  # as PyTorch names it


def assign_stages(trace: Trace) -> Trace:
    """Fill the stage of every event, and mark forward work that is repeated in backward.

    docs/design/annotation.md, "Stages", has the rules.

    Source: HOTLINE section 4.2.
    """
    events = trace.events
    by_scope, repeated = stages_by_scope(trace)
    own = _own_stages(trace, by_scope)
    stage, recompute = _inherit_stages(events, own)
    stage, wrappers = release_closures(trace, own, stage)
    stage = _fill_backward_threads(trace, stage)
    stage = _fill_main_thread(trace, stage, by_scope, wrappers)
    again = recomputed(events, stage == CODE["backward"]) & ~events.text("name").where(is_communication_call)
    recompute |= again | repeated
    recompute = is_inside(events["parent"], recompute)
    return warn_unknown_passes(_through_launches(trace, stage, recompute, by_scope))


def _own_stages(trace: Trace, by_scope: Codes8) -> Codes8:
    events = trace.events
    own = stage_of_names(events.text("name"), events.text("category")).codes.copy()
    own[is_backward(events)] = CODE["backward"]
    own = np.where(by_scope >= 0, by_scope, own)
    own[~on_host(trace)] = _NONE
    own[_around_models(events, own)] = _NONE
    served = stages_by_iteration(trace, on_host(trace))
    return np.where(served >= 0, served, own).astype(np.int8)


def _around_models(events: Table, own: Codes8) -> Mask:
    """Ranges that are named a loss, or backward, and call the model too.

    They hold layers, as no other part does; those around backward some that it returns to.
    """
    ranges = events.text("category").mask("annotation") & np.isin(own, (CODE["loss"], CODE["backward"]))
    layers = events.text("name").where(lambda name: is_layer(name) or name.startswith(_COMPILED))
    returned = layers & np.isin(events["id"], events["forward_event"])
    layers |= own == CODE["forward"]
    other = (own >= 0) & (own != CODE["forward"])
    around = inherit(events["parent"], np.where(ranges, own, np.where(other, CODE["other"], _NONE)))
    inside = (layers & (around == CODE["loss"])) | (returned & (around == CODE["backward"]))
    inside &= ~(layers & (around == _NONE)).any()
    return np.asarray(ranges & holds(events["parent"], inside))


def _inherit_stages(events: Table, own: Codes8) -> tuple[Codes8, Mask]:
    """Pass stages down to nested events; also returns which forward marks lie inside backward."""
    allowed = np.zeros((len(STAGES) + 1, len(STAGES)), np.bool_)
    for outer_stage, inside in _INSIDE.items():
        allowed[CODE[outer_stage], [CODE[stage] for stage in inside]] = True
    allowed[_NONE] = True  # the last row: nothing around
    stage = passed_down(events["parent"], own, allowed)
    return stage, (own == CODE["forward"]) & (stage == CODE["backward"])


def _fill_backward_threads(trace: Trace, stage: Codes8) -> Codes8:
    """On a thread other than the training loop's that mostly runs autograd, all is backward.

    Where operators are not recorded, autograd's thread is known by its name, or launches all its work
    while the thread of the training loop is in a range of backward.
    """
    events, tracks = trace.events, trace["tracks"]
    top = (events["parent"] < 0) & on_host(trace)
    time, backward = time_by_track(trace, top), time_by_track(trace, top & (stage == CODE["backward"]))
    autograd = (backward > _OTHER_THREAD_SHARE * time) & (time > 0)
    main = main_track(trace)
    autograd |= _launches_in_backward(trace, stage, main)
    autograd |= tracks.text("name").where(lambda name: bool(_AUTOGRAD_THREAD.match(name)))
    autograd[main] = False
    return np.where(autograd[events["track"]] & (stage < 0), CODE["backward"], stage).astype(np.int8)


def _launches_in_backward(trace: Trace, stage: Codes8, main: int) -> Mask:
    """Threads that launch for the training loop's thread while that is in backward, (tracks,)."""
    events, count = trace.events, len(trace["tracks"])
    in_loop = (events["track"] == main) & (stage == CODE["backward"])
    loop = Intervals(*events.spans(in_loop))
    launches = np.unique(trace["launches"]["cpu_event"])
    own = int(in_loop[launches].sum())
    launches = launches[stage[launches] < 0]
    inside = loop.cover(events["start_ns"][launches])
    launched = np.bincount(events["track"][launches], minlength=count)
    in_backward = np.bincount(events["track"][launches], inside, count)
    return np.asarray((in_backward > own) & (in_backward >= _INSIDE_BACKWARD * launched))


def _fill_main_thread(trace: Trace, stage: Codes8, by_scope: Codes8, wrappers: Mask) -> Codes8:
    """Assign the remaining events of the training loop by their position in the step.

    Calls that start a compiled step are `other`: they cover all stages.
    """
    events = trace.events
    result = stage.copy()
    work = _host_work(trace) & ~wrappers
    is_lazy = _is_lazy(trace, stage)  # then nothing shows an update by hand
    launched = work_launched(trace, is_lazy or bool((stage[work] == CODE["optimizer"]).any()))
    loop = events["track"] == main_track(trace)
    unassigned = work & (stage < 0) & loop
    unassigned &= ~(launched.computes & is_lazy)
    compiled = events["step"][by_scope == CODE["backward"]]
    unassigned &= ~np.isin(events["step"], compiled) & (not passes_are_unknown(trace, stage))
    steps = list(rows_by_key(events["step"], np.flatnonzero(work)).values())

    def assigned(rows: Rows) -> Codes8:
        known = stage[rows], loop[rows], unassigned[rows]
        return assign_by_position(events, rows, *known, launched)

    for rows, stages in zip(steps, in_threads(assigned, steps, int(work.sum())), strict=True):
        result[rows] = stages
    result = _as_called(trace, result, work & ~loop)
    # Backward returns to threads that run a part of the forward pass, as those of DataParallel do.
    tracks = np.unique(events["track"][events["forward_event"][events["forward_event"] >= 0]])
    forward = np.isin(events["track"], tracks) & ~loop
    elsewhere = work & (result < 0)
    result[elsewhere] = np.where(forward, CODE["forward"], CODE["other"])[elsewhere]
    return result


def _as_called(trace: Trace, stage: Codes8, elsewhere: Mask) -> Codes8:
    """Collectives on threads of a process group have the stage of the call that came before."""
    events = trace.events
    calls = np.flatnonzero(events.text("name").where(is_communication_call) & (stage >= 0))
    calls = calls[~events.text("category").mask("communication")[calls]]
    rows = np.flatnonzero(elsewhere & (stage < 0) & events.text("category").mask("communication"))
    place = last_begun(events["start_ns"][calls], events["start_ns"][rows])
    result = stage.copy()
    result[rows[place >= 0]] = stage[calls[place[place >= 0]]]
    return result


def _host_work(trace: Trace) -> Mask:
    """CPU events in steps, without Python frames, whose stage only their names identify."""
    events = trace.events
    work = on_host(trace) & events.text("category").mask("cpu_op", "runtime", "annotation", "communication")
    return work & (events["step"] >= 0) & ~step_marks(trace)


def _by_device_ranges(trace: Trace) -> Codes8:
    """The stage of the innermost range around each event on its own track, by the range's name."""
    events = trace.events
    category = events.text("category")
    rows = np.flatnonzero(category.mask("annotation") & ~on_host(trace))
    stage = np.full(len(events), _NONE, np.int8)
    stage[rows] = stage_of_names(events.text("name").take(rows), category.take(rows)).codes
    served = stages_by_iteration(trace, ~on_host(trace))
    return inherit(events["parent"], np.where(served >= 0, served, stage)).astype(np.int8)


def _through_launches(trace: Trace, stage: Codes8, recompute: Mask, by_scope: Codes8) -> Trace:
    caller = caller_of(trace)
    linked = caller >= 0
    stage, recompute = stage.copy(), recompute.copy()
    stage[linked] = stage[caller[linked]]
    if _is_lazy(trace, stage):
        stage[linked & trace.events.text("category").mask("kernel")] = CODE["other"]
    stage = np.where(linked | on_host(trace), stage, _by_device_ranges(trace)).astype(np.int8)
    stage = np.where(by_scope >= 0, by_scope, stage).astype(np.int8)
    stage = _by_kernel_names(trace, stage)
    recompute[linked] |= recompute[caller[linked]]
    return trace.with_events(stage=Text(stage, STAGES), recompute=recompute.astype(np.int8))


def _is_lazy(trace: Trace, stage: Codes8) -> bool:
    """Whether a device runs whole steps at one call: neither backward nor its forward launch any work.

    Calls in these whose work is not in the file were recorded without it.
    """
    events, caller = trace.events, caller_of(trace)
    callers = caller[caller >= 0]
    backward, asked = stage == CODE["backward"], events["sequence"] >= 0
    if not len(callers) or backward[callers].any():  # as nearly everywhere
        return False
    if not (asked & backward).any() or not (asked & ~backward).any():
        return False
    passes = backward | is_inside(events["parent"], asked)
    return not (passes[callers].any() or (passes & events.text("category").mask("runtime")).any())


def _by_kernel_names(trace: Trace, stage: Codes8) -> Codes8:
    """Where nothing else shows the passes, the stage that kernels are named after, if most are."""
    events, passes = trace.events, (CODE["forward"], CODE["backward"])
    if np.isin(stage, passes).any():
        return stage
    category = events.text("category")
    rows = np.flatnonzero(category.mask(*COMPUTING) & ~on_host(trace) & (events["step"] >= 0))
    ranges = Text(np.zeros(len(rows), np.int8), ["annotation"])
    name = events.text("name").take(rows)
    named = stage_of_names(name, ranges).codes
    named = np.where((named < 0) & name.where(lambda text: bool(_OF_WEIGHTS.search(text))), passes[1], named)
    is_pass = np.isin(named, passes)
    duration = events["duration_ns"][rows]
    if duration[is_pass].sum() <= _NAMED_SHARE * duration.sum():
        return stage
    result = stage.copy()
    result[rows[named >= 0]] = named[named >= 0]
    return result
