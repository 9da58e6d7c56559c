"""Modules told by a model tree alone: its leaves matched with the names of operators, in order.

The tree's leaves tell which operators to look for (`operator_names`), the operators of each step
are laid out in a row (`operator_rows`), the calls that best explain them are searched
(`call_search`), and what lies between goes to a neighbour or to the block around
(`between_calls`). Backward follows forward where the file links them; otherwise its nodes, last
first, are matched with the operators that told the forward calls.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.alignment import common_positions, with_neighbours
from stepscope.annotate.backward import is_backward
from stepscope.annotate.between_calls import owners
from stepscope.annotate.call_search import Search
from stepscope.annotate.calls import Calls
from stepscope.annotate.module_evidence import Evidence, Module, tree_modules
from stepscope.annotate.module_parts import root_part
from stepscope.annotate.operator_rows import (
    backward_rows,
    forward_rows,
    names_inside,
    recomputed_rows,
)
from stepscope.annotate.recomputed import repeated_rows
from stepscope.annotate.roles import Roles, class_name
from stepscope.trace.schema import DEVICE_WORK, STAGES
from stepscope.trace.trace import Trace

Ids = NDArray[np.int64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
_LOSS = STAGES.index("loss")
_BACKWARD = STAGES.index("backward")


def from_tree(trace: Trace) -> Evidence | None:
    """Modules from the model tree in the trace's metadata, matched with operators by name.

    Args:
        trace: with launches, backward links, steps and stages.

    Returns:
        The modules, those of the events that tell them, and how often each was called forward; None
        without a tree.

    Example:
        >>> evidence = from_tree(trace)  # doctest: +SKIP
        >>> evidence.modules[evidence.call_of[event]].path  # doctest: +SKIP
        'layer1.0.conv1'
    """
    modules = tree_modules(trace.metadata.model)
    if not modules:
        return None
    matcher = _Matcher(trace, modules)
    forward = forward_rows(trace, matcher.recognised)
    matcher.claim(forward)
    matcher.claim_again(forward, recomputed_rows(trace, matcher.recognised))
    if not (trace.events["forward_event"] >= 0).any():
        matcher.claim_backward(backward_rows(trace))
    return Evidence("matched", modules, matcher.claims, matcher.calls)


@dataclass
class _Pass:
    """What was found for one pass: the module of each operator, the calls, and what told them."""

    modules: Ids
    calls: Calls
    bits: list[int]


class _Matcher:
    """What has been claimed so far for the modules of a tree.

    Attributes:
        recognised: events whose name a module asks for, shape (events,).
        claims: int32, shape (events,), the module of each event that tells one, or -1.
        calls: int64, shape (modules,), how often each was called.
    """

    def __init__(self, trace: Trace, modules: Sequence[Module]) -> None:
        self._trace = trace
        self._modules = modules
        self._names = trace.events.text("name")
        self._classes = [class_name(module) for module in modules]
        self._roles = Roles(modules, _worked(trace, backward=False))
        self._root = root_part(modules, self._roles)
        self._search = Search(self._roles.sure, self._roles.all_sizes)
        self._passes: dict[int, _Pass] = {}
        self.recognised = self._names.where(lambda name: self._roles.bits_of(name) != 0)
        self.claims = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(modules), np.int64)

    def claim(self, passes: Sequence[Rows]) -> None:
        """Match each step's forward pass; passes of the same operators are matched once."""
        known: dict[bytes, _Pass] = {}
        inside = names_inside(self._trace, self._opaque(passes))
        for rows in passes:
            key = self._names.codes[rows].tobytes()
            if key not in known:
                known[key] = self._match(rows, inside)
            self._passes[self._step(rows)] = known[key]
            self.claims[rows] = known[key].modules
            self.calls += np.bincount(known[key].calls.module[1:], minlength=len(self.calls))

    def claim_again(self, forward: Sequence[Rows], recomputed: Sequence[Rows]) -> None:
        """Recomputed operators belong to the module of the forward operator that they repeat."""
        nodes = np.flatnonzero(is_backward(self._trace.events))
        passes = {self._step(rows): rows for rows in forward}
        for rows in recomputed:
            origin = passes.get(self._step(rows), rows[:0])
            first = repeated_rows(self._names.codes, nodes, origin, rows)
            self.claims[rows] = np.where(first >= 0, self.claims[first], -1)

    def claim_backward(self, passes: Sequence[Rows]) -> None:
        """Gradient nodes, last first, run through the calls of the forward pass in its order."""
        roles = Roles(self._modules, _worked(self._trace, backward=True), backward=True)
        known: dict[tuple[bytes, int], Ids] = {}
        for rows in passes:
            forward = self._passes.get(self._step(rows))
            key = self._names.codes[rows].tobytes(), id(forward)
            if forward and key not in known:
                names = [self._names[row] or "" for row in rows]
                known[key] = self._follow(forward, names, [roles.bits_of(name) for name in names])
            self.claims[rows] = known.get(key, -1)

    def _step(self, rows: Rows) -> int:
        return int(self._trace.events["step"][rows[0]])

    def _opaque(self, passes: Sequence[Rows]) -> Mask:
        """Operators whose own name says nothing: what they run may."""
        opaque = np.zeros(len(self._names), np.bool_)
        for rows in passes:
            opaque[rows] = True
        named = self._names.where(lambda name: name.startswith("aten::"))
        return opaque & ~self.recognised & ~named

    def _match(self, rows: Rows, inside: Mapping[int, set[int]]) -> _Pass:
        bits = [self._bits_of(event, inside.get(event, ())) for event in rows.tolist()]
        telling = [position for position, one in enumerate(bits) if one]
        told = [bits[position] for position in telling]
        calls = Calls.of(self._root, self._search.explain(self._root, told))
        names = [self._names[row] or "" for row in rows]
        modules = np.array(calls.module)[owners(calls, telling, names, self._classes)]
        # A loss that no module of the tree computes is the training loop's.
        loss = (self._trace.events["stage"][rows] == _LOSS) & (np.array(bits) == 0)
        return _Pass(np.where(loss, -1, modules), calls, told)

    def _follow(self, forward: _Pass, names: Sequence[str], bits: Sequence[int]) -> Ids:
        pairs = with_neighbours(common_positions(forward.bits, bits), forward.bits, bits)
        claimed = [forward.calls.claimed[operator] for operator, _ in pairs]
        calls = replace(forward.calls, claimed=claimed)
        found = owners(calls, [node for _, node in pairs], names, self._classes)
        modules: Ids = np.array(calls.module)[found]
        return modules

    def _bits_of(self, event: int, inside: Iterable[int]) -> int:
        """The roles that an operator may play, and the sizes of leaves that it may be one of."""
        bits = 0
        for code in (int(self._names.codes[event]), *inside):
            bits |= self._roles.bits_of(self._names.values[code])
        if bits & self._roles.sure and self._roles.all_sizes:
            shapes = self._trace.event_arguments(event).get("Input Dims", ())
            bits |= self._roles.sizes_of(bits, shapes)
        return bits


def _worked(trace: Trace, backward: bool) -> Sequence[str]:
    """The names of the operators and the device work of backward, or of all else."""
    events = trace.events
    work = events.text("category").mask("cpu_op", *DEVICE_WORK)
    work &= (events["stage"] == _BACKWARD) == backward
    return events.text("name").take(work).compact().values
