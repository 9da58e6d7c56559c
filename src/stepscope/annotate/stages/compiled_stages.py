"""The stages of compiled operations and of the calls that run them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.annotate.links.program_runs import calls_of_host_work
from stepscope.annotate.names.autograd_marks import is_backward
from stepscope.annotate.names.compiled_calls import called_function, is_compiled_call
from stepscope.annotate.names.named_scopes import Scope, scope_of
from stepscope.annotate.names.optimizer_frames import in_optimizer
from stepscope.annotate.names.range_names import CODE, stage_of_names, stage_of_range
from stepscope.annotate.names.tensorflow_scopes import layers_with_gradients
from stepscope.annotate.stages.compiled_evaluation import with_evaluation
from stepscope.annotate.stages.compiled_roles import with_roles, with_trained_functions
from stepscope.annotate.stages.gradient_products import merged_gradients
from stepscope.annotate.stages.gradient_sums import sums_gradients
from stepscope.annotate.stages.unknown_passes import hides_transformations
from stepscope.arrays import Codes, Codes8, IntArray, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_NONE = -1
_BY_COMPILER = "xla::"  # before an opcode: an instruction that no operation of JAX asked for


def stages_by_scope(trace: Trace) -> tuple[Codes8, Mask]:
    """The stage of each event from its scope, -1 if unknown, and which events are recomputed.

    Transformations identify the operations of a differentiated function, and stacks those of an
    optimizer. A program all of one stage, such as a backward pass compiled by itself, gives it to
    its calls and to what the compiler added; one that runs what others differentiate is evaluation,
    or forward if these take what it makes.
    The rest of a program has the stage of its role (`compiled_roles`), where the profile holds the
    program, and else one by position: `other` before the forward pass, `optimizer` after the first
    gradient. If nothing is differentiated, programs that are named so are forward and backward
    (before JAX 0.8 the operations of a pullback carry no transformation); without such names
    everything else that was compiled is forward, unless scopes may hide what is differentiated.
    Operations outside of `jax.jit` have the stage of the range in which they were called. An
    operation of TensorFlow is forward if its layer has gradients.

    Returns:
        int8 and bool, shape (events,) each.
    """
    events = trace.events
    text = events.text("scope")
    if not (text.codes >= 0).any() and not (events["origin"] >= 0).any():  # nothing was compiled
        return np.full(len(events), _NONE, np.int8), np.zeros(len(events), np.bool_)
    scopes = _with_layers(text.values)
    stage = _table([CODE[scope.stage] if scope.stage else _NONE for scope in scopes])[text.codes]
    stage[(stage == _NONE) & in_optimizer(trace)] = CODE["optimizer"]
    called = np.where((stage == _NONE) & (text.codes >= 0), _stages_of_callers(trace), _NONE)
    stage[(stage == _NONE) & sums_gradients(trace)] = CODE["backward"]
    again = _table([int(scope.recompute) for scope in scopes])[text.codes] > 0
    if not ((stage == CODE["backward"]).any() or (called == CODE["backward"]).any()):
        stage = _with_named_passes(stage, scopes, text.codes)
    if (stage == CODE["backward"]).any() or is_backward(events).any():
        stage = _with_rest_of_programs(trace, stage, scopes)
    elif not ((called == CODE["backward"]).any() or hides_transformations(text.values)):
        stage[(stage == _NONE) & (text.codes >= 0)] = CODE["forward"]
    return np.where(called >= 0, called, stage).astype(np.int8), again


def _with_layers(texts: Sequence[str]) -> list[Scope]:
    """The scopes; those of TensorFlow's layers are forward if these have gradients, else other."""
    scopes = [scope_of(text) for text in texts]
    layers = layers_with_gradients(texts)
    if not layers:
        return scopes
    return [
        scope if scope.stage or "(" in text
        else scope._replace(stage="forward" if {*scope.modules[:1]} & layers else "other")
        for text, scope in zip(texts, scopes, strict=True)
    ]  # fmt: skip


def _with_named_passes(stage: IntArray, scopes: list[Scope], codes: Codes) -> IntArray:
    """The stages, with those of programs that are named as passes, if one of them is backward."""
    named = {program: stage_of_range(program) for program in {scope.program for scope in scopes}}
    if "backward" not in named.values():
        return stage
    passes = [named[scope.program] for scope in scopes]
    table = _table([CODE[one] if one in ("forward", "backward") else _NONE for one in passes])
    return np.where(stage == _NONE, table[codes], stage)


def _stages_of_callers(trace: Trace) -> Codes8:
    """The stage of the range in which each operation's program was called, -1 without one.

    Outside of `jax.jit` each operation is a program of its own.
    """
    events = trace.events
    annotations = events.text("category").mask("annotation")
    if not annotations.any():
        return np.full(len(events), _NONE, np.int8)
    own = stage_of_names(events.text("name"), events.text("category")).codes
    around = inherit(events["parent"], np.where(annotations, own, _NONE))
    result: Codes8 = np.append(around, _NONE)[np.maximum(calls_of_host_work(trace), _NONE)]
    return result.astype(np.int8)


def _with_rest_of_programs(trace: Trace, stage: IntArray, scopes: list[Scope]) -> IntArray:
    """Assign what its own scope does not, from the rest of its program."""
    codes = trace.events.text("scope").codes
    functions = sorted({one.program for one in scopes})
    number = {name: code for code, name in enumerate(functions)}
    program = _table([number[scope.program] for scope in scopes], np.int32)[codes]
    single = _single_stages(stage, program, len(number))
    added = _table([scope.primitive.startswith(_BY_COMPILER) for scope in scopes])[codes] > 0
    stage = np.where((stage == _NONE) & added, single[program], stage)
    stage = with_evaluation(trace, stage, program, functions)
    differentiates = np.isin(program, np.unique(program[stage == CODE["backward"]]))
    stage = with_trained_functions(trace, stage)
    stage[differentiates & merged_gradients(trace)] = CODE["backward"]
    stage = with_roles(trace, stage)
    single = _single_stages(stage, program, len(number))
    _assign_by_position(trace, stage, program)
    stage = np.where(stage == _NONE, single[program], stage)
    names = trace.events.text("name")
    calls = [number.get(called_function(name), _NONE) for name in names.values]
    called = np.where(names.where(is_compiled_call), _table(calls, np.int32)[names.codes], _NONE)
    return np.where(stage == _NONE, single[called], stage)


def _single_stages(stage: IntArray, program: IntArray, programs: int) -> IntArray:
    """The stage of each program whose known operations are all of one; else, and last, -1."""
    known = (stage != _NONE) & (program >= 0)
    size = programs * len(STAGES)
    count = np.bincount(program[known] * len(STAGES) + stage[known], minlength=size)
    by_program = count.reshape(programs, len(STAGES)) > 0
    is_single = by_program.sum(axis=1) == 1
    return np.append(np.where(is_single, by_program.argmax(axis=1), _NONE), _NONE)


def _table(codes: list[int], dtype: type[np.integer] = np.int8) -> IntArray:
    """A lookup table by code, with a last entry for events without one."""
    return np.array([*codes, _NONE], dtype)


def _assign_by_position(trace: Trace, stage: IntArray, program: IntArray) -> None:
    """Assign the rest of a program, outside its two passes, by position."""
    step = trace.events["step"]
    key = (step.astype(np.int64) << 32) + program
    backward = (stage == CODE["backward"]) & (step >= 0)
    for program_key in np.unique(key[backward]).tolist():
        rows = np.flatnonzero((key == program_key) & (program >= 0))
        start, assigned = trace.events["start_ns"][rows], stage[rows]
        unassigned = assigned == _NONE
        forward = start[assigned == CODE["forward"]].min(initial=np.iinfo(np.int64).max)
        backward_start = start[assigned == CODE["backward"]].min()
        assigned[unassigned] = np.select(
            [start >= backward_start, start >= forward],
            [CODE["optimizer"], CODE["forward"]],
            CODE["other"],
        )[unassigned]
        stage[rows] = assigned
