"""Parse the named scope of a compiled operation: its pass, its modules, its primitive.

JAX writes the scopes that were open when an operation was traced, and the transformations between:
`jit(train_step)/transpose(jvp(CNN))/Dense_0/dot_general` is part of the backward pass of `Dense_0`
in `CNN`. An operation that XLA fuses from several has the scope of one of them; one that it merged
from several has their scopes with `;` between, of which the first stands for all.

Source: JAX's name stack (jax/_src/source_info_util.py) and the names of its transformations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stepscope.annotate.names.autograd_marks import is_backward
from stepscope.annotate.names.range_names import CODE, stage_of_range
from stepscope.arrays import Codes8, IntArray, Mask
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
# What encloses an operation, as JAX's users call it; `vmap` is a transformation.
_ENCLOSING = {
    "while": "while", "scan": "scan", "checkpoint": "remat", "remat": "remat",
    "remat2": "remat", _REPEATED: "recomputed", "shard_map": "shard_map",
    "pallas_call": "pallas_call",
}  # fmt: skip
_BRANCH = re.compile(r"^branch_\d+_fun$")
_OF_SCAN = ("while", "body", "closed_call")
_EINSUM = "->"
_NONE = -1
_LONGEST, _DEEPEST = 4096, 64  # parsing takes bounded time for any input


class Scope(NamedTuple):
    """A parsed scope.

    Attributes:
        program: the compiled function, empty if unknown.
        stage: the stage from its transformations or from a scope name; None if unknown.
        recompute: whether it is forward work repeated in the backward pass.
        modules: names of the enclosing scopes, the outermost first.
        primitive: the operation itself.
        inside: what encloses it, outermost first: `scan`, `while`, `cond`, `vmap`, `remat`,
            `recomputed`, `shard_map`, `pallas_call`.
    """

    program: str
    stage: str | None
    recompute: bool
    modules: tuple[str, ...]
    primitive: str
    inside: tuple[str, ...] = ()


@lru_cache(maxsize=1 << 16)
def scope_of(text: str) -> Scope:
    """Parse a scope.

    Example:
        >>> scope_of("jit(step)/transpose(jvp(CNN))/Dense_0/dot_general")[1:5]
        ('backward', False, ('CNN', 'Dense_0'), 'dot_general')
        >>> scope_of("jit(step)/jvp(vmap())/while/body/closed_call/tanh").inside
        ('vmap', 'scan')
    """
    *around, primitive = _split(text[:_LONGEST].partition(";")[0])
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
    inside = tuple(_enclosing(around))[:_DEEPEST]
    return Scope(program, stage, recompute, tuple(names[:_DEEPEST]), primitive, inside)


def _enclosing(parts: list[str]) -> Iterator[str]:
    """What encloses an operation; the body of a scan is a call within a while loop."""
    for number, part in enumerate(parts):
        if "(" in part:
            yield from (name for name in part.split("(") if name == "vmap")
        elif tuple(parts[number : number + 3]) == _OF_SCAN:
            yield "scan"
        elif _BRANCH.match(part):
            yield "cond"
        elif shown := _ENCLOSING.get(part):
            yield shown


def _split(text: str) -> list[str]:
    """The parts between slashes that are outside parentheses."""
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
    stages: Iterator[str] = filter(None, map(stage_of_range, names))
    return next(stages, "forward" if "jvp" in transforms else None)


def stages_by_scope(trace: Trace) -> tuple[Codes8, Mask]:
    """The stage of each event from its scope, -1 if unknown, and which events are recomputed.

    Transformations identify the operations of a differentiated function. The rest of its program is
    assigned by position: `other` before the forward pass, `optimizer` after the first gradient. If
    nothing is differentiated, everything compiled is forward.

    Returns:
        int8 and bool, shape (events,) each.
    """
    events = trace.events
    text = events.text("scope")
    scopes = [scope_of(value) for value in text.values]
    stage = _table([CODE[scope.stage] if scope.stage else _NONE for scope in scopes])[text.codes]
    again = _table([int(scope.recompute) for scope in scopes])[text.codes] > 0
    programs = {
        name: number for number, name in enumerate(sorted({scope.program for scope in scopes}))
    }
    program = _table([programs[scope.program] for scope in scopes], np.int32)[text.codes]
    if (stage == CODE["backward"]).any() or is_backward(events).any():
        _assign_by_position(trace, stage, program)
    else:
        stage[(stage == _NONE) & (text.codes >= 0)] = CODE["forward"]
    return stage.astype(np.int8), again


def _table(codes: list[int], dtype: type[np.integer] = np.int8) -> IntArray:
    """A lookup table by scope code, with a last entry for events without a scope."""
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


def primitives(scope: Text) -> Text:
    """The primitive of each scope."""
    return scope.map(lambda text: scope_of(text).primitive)
