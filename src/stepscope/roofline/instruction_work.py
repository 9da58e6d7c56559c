"""The work of XLA's instructions, as XLA recorded it or as the shapes of its program give it.

On a GPU one instruction may run several kernels: together they are one execution of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import MsgspecError, Struct, field
from msgspec.json import Decoder

from stepscope.annotate.links.launches import launch_of
from stepscope.arrays import Codes8, Floats, Ids32, IntArray
from stepscope.trace.trace import Trace

_FRAMEWORKS = ("jax", "xla")
_UNKNOWN = float("nan")
NO_ORIGIN, XLA, SHAPES = range(3)


class _Recorded(Struct, gc=False):
    """What an event's arguments say of its instruction and the work of that."""

    operation: str = field(name="hlo_op", default="")
    program: int = field(name="program_id", default=-1)
    flops: float = _UNKNOWN
    bytes: float = field(name="bytes_accessed", default=_UNKNOWN)
    shape_flops: float = field(name="flops_from_shapes", default=_UNKNOWN)
    product_flops: float = field(name="product_flops_from_shapes", default=_UNKNOWN)
    shape_bytes: float = field(name="bytes_from_shapes", default=_UNKNOWN)
    width: int = field(name="operand_bytes", default=0)


_DECODER = Decoder(_Recorded, strict=False)
_NOTHING = _Recorded()


class InstructionWork(NamedTuple):
    """The work of the executions of instructions.

    Attributes:
        execution: first event of the execution that an event is part of, -1 for events that
            execute no instruction of known work, int32, shape (events,).
        rows: those that do, shape (n,).
        flops: operations of the execution, nan if unknown; of one that multiplies, those of its
            products, shape (n,).
        bytes: bytes that it moves, nan if unknown, shape (n,).
        width: bytes per element of its products' operands, 0 if unknown, int8, shape (n,).
        origin: XLA or SHAPES, whichever gave the operations; else NO_ORIGIN; int8, shape (n,).
    """

    execution: Ids32
    rows: IntArray
    flops: Floats
    bytes: Floats
    width: Codes8
    origin: Codes8


def instruction_work(trace: Trace) -> InstructionWork:
    """The work of all compiled operations and kernels of a trace of XLA; else of none."""
    events, compiled = trace.events, trace.metadata.framework in _FRAMEWORKS
    rows = np.flatnonzero(events.text("category").mask("cpu_op", "kernel") & compiled)
    rows = rows[np.argsort(events["source"][rows], kind="stable")]
    found = [_decoded(text) for text in trace.arguments.texts(events["source"][rows])]
    values = np.array([_work(one) for one in found], np.float64).reshape(-1, 4)
    known = ~np.isnan(values[:, :2]).all(axis=1)
    names = [(one.program, one.operation) for one in found]
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    instruction = np.array([codes[name] for name in names], np.int64)
    rows, values, instruction = rows[known], values[known], instruction[known]
    execution = np.full(len(events), -1, np.int32)
    execution[rows] = _executions(trace, rows, instruction)
    flops, size, width, origin = values.T
    return InstructionWork(
        execution, rows, flops, size, width.astype(np.int8), origin.astype(np.int8)
    )


def _decoded(text: bytes) -> _Recorded:
    if b"bytes_" not in text and b'"flops' not in text:
        return _NOTHING
    try:
        return _DECODER.decode(text)
    except MsgspecError:
        return _NOTHING


def _work(one: _Recorded) -> tuple[float, float, int, int]:
    """Operations, bytes, width and origin; XLA's own counts take precedence."""
    size = one.bytes if one.bytes == one.bytes else one.shape_bytes
    if one.flops == one.flops:
        return one.flops, size, one.width, XLA
    flops = one.product_flops if one.width else one.shape_flops
    return flops, size, one.width, SHAPES if flops == flops else NO_ORIGIN


def _executions(trace: Trace, rows: IntArray, instruction: IntArray) -> IntArray:
    """The first event of the execution that each event is part of.

    On GPUs, kernels of one instruction whose launches follow each other inside one call are one
    execution. On the CPU and on TPUs, where one call launches all, each event is an instruction.
    """
    events, caller = trace.events, launch_of(trace)[rows]
    around = np.where(caller >= 0, events["parent"][caller], -1)
    thread = np.where(caller >= 0, events["track"][caller], -1)
    order = np.lexsort((rows, caller, thread))
    before, after = order[:-1], order[1:]
    same = (caller[after] >= 0) & (caller[after] != caller[before])
    for key in (instruction, around, thread):
        same &= key[after] == key[before]
    first = np.append(True, ~same)[: len(rows)]
    result = np.empty(len(rows), np.int64)
    result[order] = rows[order][first][np.cumsum(first) - 1]
    return result
