"""The work of a trace's operators and kernels, from recorded arguments; each is evaluated once.

In a trace of XLA, instructions are operators of known work."""

import re
from collections.abc import Callable
from functools import cached_property
from math import nan, prod
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder
from numpy.typing import NDArray

from stepscope.base.arrays import Codes8, Floats, Ids, Ids32, IntArray, Mask, Times
from stepscope.base.compiled.library import function
from stepscope.facts.annotate.links.launches import caller_of, launch_of
from stepscope.facts.roofline.formulas import Work, has_formula, multiplies, read_call, work_of
from stepscope.facts.roofline.rates import PRECISIONS, precisions
from stepscope.trace.arguments import Arguments, parse
from stepscope.trace.nesting import inherit, innermost
from stepscope.trace.schema import KERNEL_KINDS, OPERATIONS, PRODUCT_KINDS
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_UNKNOWN = float("nan")
_DEEPEST = 200  # operators around an operator; a dozen are usual, and each level takes its time
NO_ORIGIN, XLA, SHAPES = range(3)


class _RecordedWork(Struct, gc=False):
    """What an event's arguments say of its instruction and the work of that."""

    operation: str = field(name="hlo_op", default="")
    program: int = field(name="program_id", default=-1)
    flops: float = _UNKNOWN
    bytes: float = field(name="bytes_accessed", default=_UNKNOWN)
    shape_flops: float = field(name="flops_from_shapes", default=_UNKNOWN)
    product_flops: float = field(name="product_flops_from_shapes", default=_UNKNOWN)
    shape_bytes: float = field(name="bytes_from_shapes", default=_UNKNOWN)
    width: int = field(name="operand_bytes", default=0)


_DECODER = Decoder(_RecordedWork, strict=False)
_NOTHING = _RecordedWork()


def _decoded(text: bytes) -> _RecordedWork:
    if b"bytes_" not in text and b'"flops' not in text:
        return _NOTHING
    try:
        return _DECODER.decode(text)
    except MsgspecError:
        return _NOTHING


def _work(recorded: _RecordedWork) -> tuple[float, float, int, int]:
    """Operations, bytes, width and origin; XLA's own counts take precedence."""
    size = recorded.bytes if recorded.bytes == recorded.bytes else recorded.shape_bytes
    if recorded.flops == recorded.flops:
        return recorded.flops, size, recorded.width, XLA
    flops = recorded.product_flops if recorded.width else recorded.shape_flops
    return flops, size, recorded.width, SHAPES if flops == flops else NO_ORIGIN


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


_CONVOLUTION_BACKWARD = re.compile(r"aten::(cudnn_)?convolution_backward")


class _CallWork(NamedTuple):
    flops: float
    bytes: float
    width: int
    strides: bool


class Operators:
    """The operators of a trace and their work.

    Attributes:
        flops, bytes: of each event, float64, shape (events,); nan if unknown or not requested yet.
        width: bytes per element of a product's operands, int8, shape (events,).
        origin: of XLA's instructions: XLA or SHAPES, int8, shape (events,).
    """

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        self._events, self._arguments = events, trace.arguments
        self._launches = trace["launches"]  # kept, as the key in `_of_tables` has its id
        self._names = events.text("name")
        self._candidate = events.text("category").mask("cpu_op") & self._names.where(has_formula)
        self._around = innermost(events["parent"], self._candidate)
        self.flops, self.bytes = np.full((2, len(events)), np.nan)
        self.width = np.zeros(len(events), np.int8)
        self._seen = np.zeros(len(events), np.bool_)
        self._known: list[_CallWork] = []
        self._index: dict[Key, int] = {}  # in `_known`
        self._evaluating = Lock()
        self.origin = np.zeros(len(events), np.int8)
        self._execution = self._add_instructions(trace)

    def _add_instructions(self, trace: Trace) -> Ids32:
        """The first event of the execution of an instruction of XLA that each event is part of, or -1."""
        events, compiled = trace.events, trace.metadata.is_of_xla
        rows = np.flatnonzero(events.text("category").mask("cpu_op", "kernel") & compiled)
        rows = rows[np.argsort(events["source"][rows], kind="stable")]
        recorded = [_decoded(text) for text in trace.arguments.texts(events["source"][rows])]
        values = np.array([_work(work) for work in recorded], np.float64).reshape(-1, 4)
        known = ~np.isnan(values[:, :2]).all(axis=1)
        codes: dict[tuple[int, str], int] = {}
        names = ((work.program, work.operation) for work in recorded)
        instruction = np.array([codes.setdefault(name, len(codes)) for name in names], np.int64)
        rows, values = rows[known], values[known]
        self.flops[rows], self.bytes[rows], self.width[rows], self.origin[rows] = values.T
        self._seen[rows] = True
        execution = np.full(len(events), -1, np.int32)
        execution[rows] = _executions(trace, rows, instruction[known])
        return execution

    @classmethod
    def of(cls, trace: Trace) -> "Operators":
        """The operators of a trace, cached as long as the trace or one of the same events lives."""
        with _keeping:
            if trace not in _kept:
                key = id(trace.events), id(trace.arguments), id(trace["launches"])
                _kept[trace] = _of_tables.get(key) or cls(trace)
                _of_tables[key] = _kept[trace]
            return _kept[trace]

    def of_work(self, rows: IntArray, caller: IntArray) -> IntArray:
        """The operator whose work each kernel, or operator without a device, does; or -1.

        Args:
            caller: the event that launched each, -1 for none, shape (n,).
        """
        execution = self._execution[rows]
        other = np.flatnonzero(execution < 0)
        found = execution.astype(np.int64)
        found[other] = self.known_around(np.where(caller >= 0, caller, rows)[other])
        return found

    def known_around(self, rows: IntArray) -> IntArray:
        """The innermost operator with known work around each event, itself included; or -1."""
        parent, found = self._events["parent"], self._around[rows]
        for _ in range(_DEEPEST):
            self._evaluate(found[found >= 0])
            lost = (found >= 0) & np.isnan(self.flops[found]) & np.isnan(self.bytes[found])
            if not lost.any():
                return found
            above = parent[found[lost]]
            found[lost] = np.where(above >= 0, self._around[above], -1)
        return np.where(lost, -1, found)

    def around_products(self, rows: IntArray) -> IntArray:
        """The events around the products among `rows`, whose work those products do."""
        parent, found = self._events["parent"], [np.empty(0, np.int32)]
        products = rows[self._names.where(multiplies)[rows] & (self.flops[rows] > 0)]
        around = distinct(parent[products])
        while len(around := around[around >= 0]) and len(found) < _DEEPEST:
            found.append(around)
            around = distinct(parent[around])
        return distinct(np.concatenate(found))

    def _evaluate(self, rows: IntArray) -> None:
        """Find the work of operators; a thread waits for what another one is finding."""
        with self._evaluating:
            fresh = distinct(rows[~self._seen[rows]])
            self._seen[fresh] = True
            fresh = fresh[np.argsort(self._events["source"][fresh], kind="stable")]
            places, names = self._events["source"][fresh], self._names.codes[fresh]
            index = numbered_calls(self._arguments, places, names, self._lookup)
            known = np.array(self._known, np.float64).reshape(-1, len(_CallWork._fields))[index]
            self.flops[fresh], self.bytes[fresh], self.width[fresh], strides = known.T
            for row in fresh[np.isnan(self.flops[fresh]) & (strides == 0)].tolist():
                if row in self._by_gradient:
                    self.flops[row], self.bytes[row] = self._by_gradient[row]

    def _lookup(self, name: int, text: bytes) -> int:
        """The index of a call's work in `_known`; equal calls are evaluated once."""
        key = key_of(name, text)
        if key is None:
            return self._add(name, text)
        if key not in self._index:
            self._index[key] = self._add(name, text)
        return self._index[key]

    def _add(self, name: int, text: bytes) -> int:
        called, call = self._names.values[name], read_call(parse(text))
        work = work_of(called, call) or Work(nan, nan)
        self._known.append(_CallWork(*work, call.width, bool(call.values)))
        return len(self._known) - 1

    @cached_property
    def _by_gradient(self) -> dict[int, Work]:
        """Work of convolutions from their gradients, as PyTorch of 2021 records no strides.

        The gradient of the output has the output's shape.
        """
        events = self._events
        forward = inherit(events["parent"], events["forward_event"])
        backward = self._names.where(lambda name: bool(_CONVOLUTION_BACKWARD.fullmatch(name)))
        found = {}
        for row in np.flatnonzero(backward & (forward >= 0)).tolist():
            call = read_call(self._arguments.of(int(events["source"][row])))
            first = "cudnn" not in str(self._names[row])
            gradient, x = call.tensor(0 if first else 1), call.tensor(1 if first else 0)
            weight = call.tensor(2)
            if gradient and x and weight:
                flops = 2 * gradient.elements * prod(weight.shape[1:])
                found[int(forward[row])] = Work(flops, x.bytes + weight.bytes + gradient.bytes)
        return found


# Weak keys: a strong reference would keep the trace alive.
_kept: WeakKeyDictionary[Trace, Operators] = WeakKeyDictionary()
_of_tables: WeakValueDictionary[tuple[int, int, int], Operators] = WeakValueDictionary()
_keeping = Lock()


PRODUCTS = tuple(KERNEL_KINDS.index(kind) for kind in PRODUCT_KINDS)


class WorkPieces(NamedTuple):
    """The work of kernels or operators, arrays of shape (n,)."""

    flops: Floats  # operations, float64; nan if unknown
    bytes: Floats  # bytes read and written, float64; nan if unknown
    width: Codes8  # bytes per element of a product's operands, int8; 0 if unknown
    products: Mask  # matrix products, convolutions and attention, bool
    origin: Codes8  # where the operations of XLA's instructions come from: XLA, SHAPES or NO_ORIGIN


def work_of_pieces(trace: Trace, rows: IntArray, time_ns: Times) -> WorkPieces:
    """The work of kernels, or of operators if there is no device.

    A kernel does the work of the innermost operator with known work around its launch, or of its own
    instruction, which XLA records. Several kernels of one operator share its work by time; if one of them is
    a product, it gets all operations. Without a device, an operator around a product has no further
    operations; with a device, the kernels that it launches itself do the rest of its work.

    Args:
        time_ns: duration of each, shape (n,); for operators, without nested operators.
    """
    operators, caller = Operators.of(trace), caller_of(trace)[rows]
    operator = operators.of_work(rows, caller)
    products = np.isin(trace.events["kind"][rows], PRODUCTS)
    time = np.maximum(time_ns, 1).astype(np.float64)
    own = operator[(operator >= 0) & (caller < 0)]
    around = (caller < 0) & np.isin(rows, operators.around_products(own))
    flops = np.where(around, 0, np.append(operators.flops, np.nan)[operator])
    return WorkPieces(
        flops * share_of_operator(operator, time, products),
        np.append(operators.bytes, np.nan)[operator] * share_of_operator(operator, time),
        np.append(operators.width, np.int8(0))[operator],
        products,
        np.append(operators.origin, np.int8(0))[operator],
    )


def share_of_operator(operator: IntArray, time: Floats, prefer: Mask | None = None) -> Floats:
    """Each kernel's share of the time of its `operator`, -1 for none; only of preferred kernels, if any."""
    count = int(operator.max(initial=-1)) + 2
    if prefer is not None:
        some = np.bincount(operator[prefer] + 1, minlength=count) > 0
        time = np.where(some[operator + 1] & ~prefer, 0, time)
    total = np.bincount(operator + 1, time, count)
    return np.asarray(time / np.maximum(total[operator + 1], 1e-9), np.float64)


def with_operations(trace: Trace) -> Trace:
    """The trace with the table `operations` filled, for all ranks and steps."""
    events = trace.events
    rows = np.flatnonzero(events["kind"] >= 0)
    on_device = (trace["tracks"]["device"] >= 0)[events["track"][rows]]
    time = np.where(on_device, events["duration_ns"][rows], events["self_ns"][rows])
    pieces = work_of_pieces(trace, rows, time)
    precision = precisions(events.text("name").take(rows), pieces.width)
    codes = np.where(pieces.products & precision.mask(*PRECISIONS), precision.codes, -1)
    columns: dict[str, Any] = {
        "event": rows,
        "flops": _whole(np.where(pieces.products, pieces.flops, np.nan)),
        "bytes": _whole(pieces.bytes),
        "precision": Text(codes, PRECISIONS),
    }
    return trace.with_table(Table(OPERATIONS, columns))


def _whole(values: Floats) -> NDArray[np.int64]:
    """Rounded, -1 if unknown."""
    return np.where(np.isnan(values), -1, np.rint(values)).astype(np.int64)


# -- which calls of operators have equal arguments, as far as some keys of these go

_MEMBERS = Decoder(dict[str, Raw])
Key = tuple[object, ...]


class Counted(NamedTuple):
    """The arguments that count; the others differ from call to call."""

    keys: tuple[str, ...]  # of these arguments
    decisive: int  # where a call has none of so many first keys, the others do not count


# They determine the work of a call: without shapes or counts, types and values say nothing of it.
WORK = Counted(("Input Dims", "kernel_flop", "kernel_num_gb", "Input type", "Concrete Inputs"), 3)


def key_of(name: int, text: bytes, counted: Counted = WORK) -> Key | None:
    """Equal for calls with equal arguments; None if the arguments are no JSON object."""
    try:
        given = _MEMBERS.decode(text)
    except (MsgspecError, RecursionError):
        return None
    values = [bytes(given.get(key, b"")) for key in counted.keys]
    return (name, *values) if any(values[: counted.decisive]) else (name,)


def numbered_calls(
    arguments: Arguments,
    sources: IntArray,
    names: IntArray,
    number_of: Callable[[int, bytes], int],
    counted: Counted = WORK,
) -> Ids:
    """A number of each call, which a function is asked for once for equal calls of a block.

    Args:
        sources: positions of the calls in the file, ascending, shape (n,).
        names: a number of the name of each, shape (n,).
        number_of: of a name and the JSON text of arguments.
        counted: the arguments that count, by default those that determine the work of a call.
    """
    parts = list(arguments.parts(sources))
    numbers = np.empty(len(sources), np.int64)
    without = slice(parts[0][1].start if parts else len(sources))
    numbers[without] = [number_of(name, b"{}") for name in names[without].tolist()]
    for block, part in parts:
        own, called = sources[part], names[part]
        first = compiled_equal_calls(block.text(), *block.spans(own), called, counted)
        if first is None:  # then each call is asked for, which is slower
            first = np.arange(len(own))
        rows = distinct(first)
        of_first = np.empty(len(first), np.int64)
        calls = zip(called[rows].tolist(), block.find_all(own[rows]), strict=True)
        of_first[rows] = [number_of(name, text) for name, text in calls]
        numbers[part] = of_first[first]
    return numbers


def compiled_equal_calls(
    text: bytes, starts: Ids, ends: Ids, names: IntArray, counted: Counted = WORK
) -> Ids | None:
    """The first call whose name and arguments are equal to those of each call.

    Args:
        starts, ends: of the text of each call in `text`, equal for none, int64, shape (n,).
        counted: the arguments that count, by default those that determine the work of a call.

    Returns:
        int64, shape (n,), the number of a call; None if JSON is not plain.
    """
    is_plain = all(map(_is_plain, counted.keys))
    group = function("stepscope_equal_calls") if is_plain else None
    first = np.empty(len(starts), np.int64)
    columns = (np.ascontiguousarray(column, np.int64) for column in (starts, ends, names))
    wanted = "\n".join(counted.keys).encode()
    if group is None or not group(text, len(starts), *columns, wanted, counted.decisive, first):
        return None
    return first


def _is_plain(key: str) -> bool:
    """Whether JSON spells a key as it is."""
    return key.isprintable() and not {'"', "\\"} & {*key}
