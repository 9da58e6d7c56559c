"""The stages of compiled operations and of the calls that run them (docs/reference/stages.md).

One program may do all that a training loop does: shuffle an epoch, train on its batches, evaluate.
"""

import re
from collections.abc import Sequence

import numpy as np

from stepscope.base.arrays import Codes, Codes8, Ids, IntArray, Mask
from stepscope.facts.annotate.jax.calls import called_function, calls_of_host_work, is_compiled_call
from stepscope.facts.annotate.jax.frames import (
    frame_rows,
    frames_below_call,
    frames_of_events,
    in_optimizer,
    is_users,
)
from stepscope.facts.annotate.jax.scopes import Scope, layers_with_gradients, scope_of, scopes_of
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.range_names import CODE, stage_of_names, stage_of_range
from stepscope.trace.nesting import inherit, is_inside
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import PRODUCT_KINDS, ROLES, STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_NONE = -1
_BY_COMPILER = "xla::"  # before an opcode: an instruction that no operation of JAX asked for


def stages_by_scope(trace: Trace) -> tuple[Codes8, Mask]:
    """The stage of each event from its scope, -1 if unknown, and which events are recomputed.

    Transformations identify the operations of a differentiated function, and stacks those of an optimizer. A
    program all of one stage, such as a backward pass compiled by itself, gives it to its calls and to what
    the compiler added; one that runs what others differentiate is evaluation, or forward if these take what
    it makes. The rest of a program has the stage of its role (`compiled_roles`), where the profile holds the
    program, and else one by position: `other` before the forward pass, `optimizer` after the first gradient.
    If nothing is differentiated, programs that are named so are forward and backward (before JAX 0.8 the
    operations of a pullback carry no transformation); without such names everything else that was compiled is
    forward, unless scopes may hide what is differentiated. Operations outside of `jax.jit` have the stage of
    the range in which they were called. An operation of TensorFlow is forward if its layer has gradients.
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
    scopes = scopes_of(texts)
    layers = layers_with_gradients(texts)
    if not layers:
        return scopes
    return [
        scope
        if scope.stage or "(" in text
        else scope._replace(stage="forward" if {*scope.modules[:1]} & layers else "other")
        for text, scope in zip(texts, scopes, strict=True)
    ]


def _with_named_passes(stage: IntArray, scopes: list[Scope], codes: Codes) -> IntArray:
    """The stages, with those of programs that are named as passes, if one of them is backward."""
    named = {program: stage_of_range(program) for program in {scope.program for scope in scopes}}
    if "backward" not in named.values():
        return stage
    passes = [named[scope.program] for scope in scopes]
    table = _table([CODE[name] if name in ("forward", "backward") else _NONE for name in passes])
    return np.where(stage == _NONE, table[codes], stage)


def _stages_of_callers(trace: Trace) -> Codes8:
    """The stage of the range in which each operation's program was called, -1 without one.

    Outside of `jax.jit` each operation is a program of its own.
    """
    events = trace.events
    annotations = events.text("category").mask("annotation")
    own = stage_of_names(events.text("name"), events.text("category")).codes
    around = inherit(events["parent"], np.where(annotations, own, _NONE))
    result: Codes8 = np.append(around, _NONE)[np.maximum(calls_of_host_work(trace), _NONE)]
    return result.astype(np.int8)


def _with_rest_of_programs(trace: Trace, stage: IntArray, scopes: list[Scope]) -> IntArray:
    """Assign what its own scope does not, from the rest of its program."""
    codes = trace.events.text("scope").codes
    functions = sorted({scope.program for scope in scopes})
    number = {name: code for code, name in enumerate(functions)}
    program = _table([number[scope.program] for scope in scopes], np.int32)[codes]
    single = _single_stages(stage, program, len(number))
    added = _table([scope.primitive.startswith(_BY_COMPILER) for scope in scopes])[codes] > 0
    stage = np.where((stage == _NONE) & added, single[program], stage)
    stage = with_evaluation(trace, stage, program, functions)
    differentiates = np.isin(program, np.unique(program[stage == CODE["backward"]]))
    stage = with_trained_functions(trace, stage)
    stage[differentiates & merged_gradients(trace)] = CODE["backward"]
    by_role = _table([CODE[_STAGES[role]] for role in ROLES])[_roles(trace)]
    stage = np.where(stage == _NONE, by_role, stage)
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
    count = np.bincount(program[known] * len(STAGES) + stage[known], minlength=programs * len(STAGES))
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
    known = np.flatnonzero((program >= 0) & np.isin(key, key[backward]))
    for rows in rows_by_key(key, known).values():
        start, assigned = trace.events["start_ns"][rows], stage[rows]
        unassigned = assigned == _NONE
        forward = start[assigned == CODE["forward"]].min(initial=np.iinfo(np.int64).max)
        backward_start = start[assigned == CODE["backward"]].min()
        assigned[unassigned] = np.select(
            [start >= backward_start, start >= forward], [CODE["optimizer"], CODE["forward"]], CODE["other"]
        )[unassigned]
        stage[rows] = assigned


_PRODUCTS = ("gemm", "convolution")
_ELEMENTWISE = re.compile(
    r"^(add|sub|mul|div|neg|max|min|select_n|integer_pow|square|sqrt|convert_element_type|transpose"
    r"|reshape|squeeze|broadcast_in_dim)$"
)


def merged_gradients(trace: Trace) -> Mask:
    """Products under the name of an elementwise operation, outside both passes; (events,)."""
    products = trace.events.text("kind").mask(*_PRODUCTS)
    return products & trace.events.text("scope").where(_is_elementwise)


def _is_elementwise(text: str) -> bool:
    scope = scope_of(text)
    return scope.stage is None and _ELEMENTWISE.match(scope.primitive) is not None


_COLLECTIVES = ("psum", "pmean", "all_reduce", "reduce_scatter", "all_gather")


def sums_gradients(trace: Trace) -> Mask:
    """Collectives that take gradients and no argument of their program, bool, shape (events,)."""
    inputs = trace["inputs"]
    of_argument = inputs.text("argument").codes >= 0
    gradients = np.setdiff1d(inputs["first"][~of_argument], inputs["first"][of_argument])
    collective = trace.events.text("scope").where(
        lambda text: scope_of(text).primitive.startswith(_COLLECTIVES)
    )
    return collective & np.isin(trace.events["origin"], gradients)


# -- profiles in which nothing says what is forward

_OLD = "/jit(main)/"
_FEW = 0.5  # traced operations per call of a compiled function
_MESSAGE = (
    "the profile does not say what compiled operations were traced from, as with JAX before 0.8 "
    "on a CPU: passes and modules are unknown, and compiled work is shown as other"
)
_JSON = "trace events"
_MESSAGE_OF_JSON = (
    "JAX's profile as JSON lacks its compiled programs: passes and modules are unknown, and "
    "compiled work is shown as other; open the .xplane.pb that JAX wrote next to it"
)


def passes_are_unknown(trace: Trace, stage: Codes8) -> bool:
    """Whether compiled functions are called, but scopes say little, and nothing is backward."""
    events = trace.events
    calls = int(events.text("name").where(is_compiled_call).sum())
    traced = int(((events["scope"] >= 0) | (events["origin"] >= 0)).sum())
    unknown = traced < _FEW * calls or hides_transformations(events.text("scope").values)
    return unknown and not (stage == CODE["backward"]).any()


def hides_transformations(scopes: Sequence[str | None]) -> bool:
    """Whether scopes are as JAX before 0.8 writes them, and none has a name to be transformed.

    Example:
        >>> hides_transformations(["jit(step)/jit(main)/dot_general"])
        True
        >>> hides_transformations(["jit(step)/dot_general", "jit(step)/jit(main)/jvp(Net)/add"])
        False
    """
    old = [scope_of(scope) for scope in scopes if scope and _OLD in scope]
    return bool(old) and not any(scope.stage or scope.modules for scope in old)


def warn_unknown_passes(trace: Trace) -> Trace:
    """Warn if the stages of compiled work are unknown."""
    if not passes_are_unknown(trace, trace.events["stage"]):
        return trace
    message = _MESSAGE_OF_JSON if trace.metadata.format == _JSON else _MESSAGE
    return trace.with_warnings([("unknown_passes", message, 1)])


# -- operations outside of the two passes

_STAGES = {
    "data": "data_loading",
    "constant": "other",
    "pass": "forward",
    "update": "optimizer",
    "gradient": "backward",
    "result": "other",
}
_TAKEN = ("data", "constant", "pass")  # by one of the passes


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
    trained = _trained(trace, outer, frame[passes & trace.events.text("kind").mask(*PRODUCT_KINDS)])
    runs_trained = rest & np.append(is_inside(outer.astype(np.int32), trained), False)[frame]
    taken = np.isin(role, [ROLES.index(name) for name in _TAKEN])
    result = stage.copy()
    result[runs_trained & taken] = CODE["forward"]
    result[runs_trained & ~taken] = CODE["evaluation"]
    return result


def _roles(trace: Trace) -> IntArray:
    """The role of each event's operation, -1 if unknown; int8, shape (events,)."""
    return np.append(trace["origins"].text("role").codes, _NONE)[trace.events["origin"]]


def _trained(trace: Trace, outer: Ids, frames: Ids) -> Mask:
    """Frames of the user's innermost functions around some frames, bool, shape (frames,)."""
    name_of = [(row.function, row.file) for row in frame_rows(trace["frames"])]
    found = set()
    for row in np.unique(frames[frames >= 0]).tolist():
        while row >= 0 and not is_users(name_of[row][1]):
            row = int(outer[row])
        if row >= 0 and outer[row] >= 0:  # not the compiled function itself
            found.add(name_of[row])
    return np.array([name in found for name in name_of], np.bool_)


# -- programs that evaluate

_PROGRAM = "jit_{}"  # XLA's name for the program of a function
_SHAPES_OF_DATA = 2  # rollouts have several; one alone may be that of labels


def with_evaluation(trace: Trace, stage: IntArray, program: IntArray, names: Sequence[str]) -> IntArray:
    """The stages, with those of the programs that run what is trained: evaluation or forward.

    Without stacks no program is known to evaluate.

    Args:
        stage: of each event as far as it is known, -1 if not, shape (events,).
        program: number of the program of each compiled operation, -1 for others, shape (events,).
    """
    outer, kept = frames_below_call(trace)
    frame = np.append(kept, -1)[frames_of_events(trace)]
    differentiated = trace.events.text("scope").where(lambda text: "jvp(" in text)
    trained = _functions(trace["frames"], outer, frame[differentiated])
    training = [names[number] for number in np.unique(program[differentiated]) if number >= 0]
    shapes = trace.metadata.properties.get("program_shapes", {})
    result = stage.copy()
    known = np.unique(program[(stage >= 0) & (program >= 0)])
    for number in np.setdiff1d(program[program >= 0], known).tolist():
        rows = program == number
        if trained & _functions(trace["frames"], outer, frame[rows]):
            in_steps = np.intersect1d(trace.events["step"][rows], trace["steps"]["step"])
            least = 1 if len(in_steps) == len(trace["steps"]) else _SHAPES_OF_DATA
            # How many shapes of what one program makes are taken by those that differentiate.
            makes = set(shapes.get(_PROGRAM.format(names[number]), {}).get("makes", ()))
            taken = (shapes.get(_PROGRAM.format(name), {}).get("takes", ()) for name in training)
            fed = len(makes & set().union(*taken))
            result[rows] = CODE["forward" if fed >= least else "evaluation"]
    return result


def _functions(frames: Table, outer: Ids, used: Ids) -> set[tuple[str, str]]:
    """The user's functions around some frames, by name and file, without the compiled function."""
    rows = frame_rows(frames)
    found: set[tuple[str, str]] = set()
    seen: set[int] = set()
    for row in np.unique(used[used >= 0]).tolist():
        while outer[row] >= 0 and row not in seen:
            seen.add(row)
            if is_users(rows[row].file):
                found.add((rows[row].function, rows[row].file))
            row = int(outer[row])
    return found
