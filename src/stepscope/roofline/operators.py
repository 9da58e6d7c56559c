"""The work of the operators of a trace, by what was recorded of them; each is looked at once."""

from __future__ import annotations

import re
from functools import cached_property
from math import nan, prod
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import MsgspecError, Raw, Struct, field
from msgspec.json import Decoder
from numpy.typing import NDArray

from stepscope.roofline.formulas import Work, has_formula, multiplies, work_of
from stepscope.roofline.shapes import read_call
from stepscope.trace.arguments import parse
from stepscope.trace.nesting import inherit
from stepscope.trace.sets import distinct
from stepscope.trace.trace import Trace

Floats = NDArray[np.float64]
Rows = NDArray[np.integer]
_NOTHING = Raw(b"")
_CONVOLUTION_BACKWARD = re.compile(r"aten::(cudnn_)?convolution_backward")


class _Given(Struct, gc=False):
    """What tells the work of a call; the rest of its arguments differs from call to call."""

    dims: Raw = field(name="Input Dims", default=_NOTHING)
    types: Raw = field(name="Input type", default=_NOTHING)
    values: Raw = field(name="Concrete Inputs", default=_NOTHING)
    flops: Raw = field(name="kernel_flop", default=_NOTHING)
    size: Raw = field(name="kernel_num_gb", default=_NOTHING)


_DECODER = Decoder(_Given)


class _Told(NamedTuple):
    flops: float
    bytes: float
    width: int
    strides: bool


class Operators:
    """The operators of a trace and their work.

    Attributes:
        flops, bytes: of each event, float64, shape (events,); nan where not known or not asked for.
        width: bytes an element of what it multiplies, int8, shape (events,).
    """

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        self._events, self._arguments = events, trace.arguments
        self._names = events.text("name")
        self._candidate = events.text("category").mask("cpu_op") & self._names.where(has_formula)
        self._around = inherit(events["parent"], np.where(self._candidate, events["id"], -1))
        self.flops, self.bytes = np.full((2, len(events)), np.nan)
        self.width = np.zeros(len(events), np.int8)
        self._seen = np.zeros(len(events), np.bool_)
        self._told: list[_Told] = []
        self._places: dict[tuple[object, ...], int] = {}  # in `_told`

    @classmethod
    def of(cls, trace: Trace) -> Operators:
        """Those of a trace, kept as long as it is."""
        if trace not in _kept:
            _kept[trace] = cls(trace)
        return _kept[trace]

    def known_around(self, rows: Rows) -> Rows:
        """The innermost operator around each event, itself included, whose work is known; or -1.

        Args:
            rows: events.id, shape (n,).
        """
        parent, found = self._events["parent"], self._around[rows]
        while True:
            self._look_at(found[found >= 0])
            lost = (found >= 0) & np.isnan(self.flops[found]) & np.isnan(self.bytes[found])
            if not lost.any():
                return found
            above = parent[found[lost]]
            found[lost] = np.where(above >= 0, self._around[above], -1)

    def around_products(self, rows: Rows) -> Rows:
        """The events around those of `rows` that are products: their work is done inside them.

        Returns:
            events.id, shape (m,).
        """
        parent, found = self._events["parent"], [np.empty(0, np.int32)]
        products = rows[self._names.where(multiplies)[rows] & (self.flops[rows] > 0)]
        around = distinct(parent[products])
        while len(around := around[around >= 0]):
            found.append(around)
            around = distinct(parent[around])
        return distinct(np.concatenate(found))

    def _look_at(self, rows: Rows) -> None:
        fresh = distinct(rows[~self._seen[rows]])
        self._seen[fresh] = True
        fresh = fresh[np.argsort(self._events["source"][fresh], kind="stable")]
        texts = self._arguments.texts(self._events["source"][fresh])
        names = self._names.codes[fresh].tolist()
        places = [self._place(name, text) for name, text in zip(names, texts, strict=True)]
        told = np.array(self._told, np.float64).reshape(-1, len(_Told._fields))[places]
        self.flops[fresh], self.bytes[fresh], self.width[fresh], strides = told.T
        for row in fresh[np.isnan(self.flops[fresh]) & (strides == 0)].tolist():
            if row in self._by_gradient:
                self.flops[row], self.bytes[row] = self._by_gradient[row]

    def _place(self, name: int, text: bytes) -> int:
        """Where in `_told` the work of a call stands: calls that are alike are looked at once."""
        if b'"Input Dims"' not in text and b'"kernel_' not in text:
            key: tuple[object, ...] = (name,)
        else:
            try:
                given = _DECODER.decode(text)
            except MsgspecError:
                return self._tell(name, text)
            flops, size = given.flops, given.size
            key = (name, bytes(given.dims), bytes(given.types), bytes(given.values))
            key += (bytes(flops), bytes(size)) if flops or size else ()
        if key not in self._places:
            self._places[key] = self._tell(name, text)
        return self._places[key]

    def _tell(self, name: int, text: bytes) -> int:
        called, call = self._names.values[name], read_call(parse(text))
        work = work_of(called, call) or Work(nan, nan)
        self._told.append(_Told(*work, call.width, bool(call.values)))
        return len(self._told) - 1

    @cached_property
    def _by_gradient(self) -> dict[int, Work]:
        """Convolutions by their gradients, as PyTorch of 2021 told no strides.

        A gradient of the output has the output's shape.
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


# What is kept with a trace must not hold it: neither would ever be let go.
_kept: WeakKeyDictionary[Trace, Operators] = WeakKeyDictionary()
