"""What a compiled operation's named scope tells: its pass, its modules, its primitive.

JAX writes the scopes that were open when an operation was traced, and the transformations between:
`jit(train_step)/transpose(jvp(CNN))/Dense_0/dot_general` is part of the backward pass of `Dense_0`
in `CNN`. What XLA makes of several operations bears the scope of one of them.

Source: JAX's name stack (jax/_src/source_info_util.py) and the names of its transformations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.backward import is_backward
from stepscope.annotate.marks import CODE, stage_of_range
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

_WRAPPED = re.compile(r"^([\w-]+)\((.*)\)$", re.DOTALL)
_CALLS = ("jit", "pjit", "xla_call", "custom_partitioning")  # in parentheses: a function's name
_MACHINERY = re.compile(
    r"^(while|body|cond|body_jaxpr|cond_jaxpr|branch_\d+_fun|scan|closed_call|core_call|pjit"
    r"|custom_[jv]jp_call(_jaxpr)?|custom_lin|checkpoint|remat2?|rematted_computation|shard_map"
    r"|pallas_call|xla_call)$"
)
_REPEATED = "rematted_computation"
_EINSUM = "->"
_NONE = -1
_LONGEST, _DEEPEST = 4096, 64  # whatever stands in a file, telling it apart takes bounded time
Codes = NDArray[np.int8]
Mask = NDArray[np.bool_]


class Scope(NamedTuple):
    """A scope taken apart.

    Attributes:
        program: the compiled function, empty where it is not told.
        stage: what it tells of the stage: a pass, or what its author called it; else None.
        recompute: whether it is forward work done again in the backward pass.
        modules: names of the scopes that it is in, the outermost first.
        primitive: the operation itself.
    """

    program: str
    stage: str | None
    recompute: bool
    modules: tuple[str, ...]
    primitive: str


@lru_cache(maxsize=1 << 16)
def scope_of(text: str) -> Scope:
    """Take a scope apart.

    Example:
        >>> scope_of("jit(step)/transpose(jvp(CNN))/Dense_0/dot_general")[1:]
        ('backward', False, ('CNN', 'Dense_0'), 'dot_general')
    """
    *around, primitive = _split(text[:_LONGEST])
    program, transforms, machinery = "", set[str](), set[str]()
    names: list[str] = []
    for part in around if "(" not in primitive else (*around, primitive):
        whole = part
        while found := _WRAPPED.match(part):
            transforms.add(found[1])
            program = program or (found[2] if found[1] in _CALLS else "")
            part = "" if found[1] in _CALLS else found[2]
        if part != whole and part in names:  # a part transformed twice is written twice
            del names[names.index(part) :]
        if _MACHINERY.match(part):
            machinery.add(part)
        elif part and _EINSUM not in part:
            names.append(part)
    stage = _stage(transforms, names)
    recompute = stage == "backward" and _REPEATED in machinery
    return Scope(program, stage, recompute, tuple(names[:_DEEPEST]), primitive)


def _split(text: str) -> list[str]:
    """The parts between slashes that stand in no parentheses."""
    parts, depth = [""], 0
    for piece in re.split(r"([/()])", text):
        depth += (piece == "(") - (piece == ")")
        if piece == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _stage(transforms: set[str], names: list[str]) -> str | None:
    if "transpose" in transforms:
        return "backward"
    told: Iterator[str] = filter(None, map(stage_of_range, names))
    return next(told, "forward" if "jvp" in transforms else None)


def stages_by_scope(trace: Trace) -> tuple[Codes, Mask]:
    """The stage of each event as its scope tells it, -1 where none does, and what is recomputed.

    Operations of a differentiated function are told by their transformations. What else its program
    does is told by place: before the forward pass it is other, after the first gradient it is the
    optimizer. Where nothing is differentiated at all, everything compiled is forward.

    Returns:
        int8 and bool, shape (events,) each.
    """
    events = trace.events
    text = events.text("scope")
    scopes = [scope_of(value) for value in text.values]
    stage = _table([CODE[one.stage] if one.stage else _NONE for one in scopes])[text.codes]
    again = _table([int(one.recompute) for one in scopes])[text.codes] > 0
    programs = {name: number for number, name in enumerate(sorted({one.program for one in scopes}))}
    program = _table([programs[one.program] for one in scopes], np.int32)[text.codes]
    if (stage == CODE["backward"]).any() or is_backward(events).any():
        _tell_rest(trace, stage, program)
    else:
        stage[(stage == _NONE) & (text.codes >= 0)] = CODE["forward"]
    return stage.astype(np.int8), again


def _table(codes: list[int], dtype: type[np.integer] = np.int8) -> NDArray[np.integer]:
    """What each distinct scope tells, and behind it what is told where there is no scope."""
    return np.array([*codes, _NONE], dtype)


def _tell_rest(trace: Trace, stage: NDArray[np.integer], program: NDArray[np.integer]) -> None:
    """Tell by place what a program does beside its two passes."""
    step = trace.events["step"]
    key = (step.astype(np.int64) << 32) + program
    backward = (stage == CODE["backward"]) & (step >= 0)
    for one in np.unique(key[backward]).tolist():
        rows = np.flatnonzero((key == one) & (program >= 0))
        start, told = trace.events["start_ns"][rows], stage[rows]
        loose = told == _NONE
        first = start[told == CODE["forward"]].min(initial=np.iinfo(np.int64).max)
        turn = start[told == CODE["backward"]].min()
        told[loose] = np.select(
            [start >= turn, start >= first], [CODE["optimizer"], CODE["forward"]], CODE["other"]
        )[loose]
        stage[rows] = told


def primitives(scope: Text) -> Text:
    """The primitive of each scope."""
    return scope.map(lambda text: scope_of(text).primitive)
