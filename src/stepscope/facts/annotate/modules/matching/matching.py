"""Modules from a model tree alone: match its leaves with the names of operators, in order.

The leaves of the tree determine which operators to look for (`roles`). The operators of each step
form a sequence (`sequences`), which is aligned with the leaves (`alignment`); operators in between
go to a neighbor or to the enclosing block (`calls`). Backward follows forward if the file links
them; otherwise its nodes, last first, are aligned with the operators of the forward calls.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import numpy as np

from stepscope.base.arrays import Ids, Mask, Rows
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.module_evidence import Evidence, Module, tree_modules
from stepscope.facts.annotate.modules.matching.alignment import Aligner
from stepscope.facts.annotate.modules.matching.calls import MatchedCalls, owners
from stepscope.facts.annotate.modules.matching.completion import complete
from stepscope.facts.annotate.modules.matching.roles import Roles, class_name, root_shape
from stepscope.facts.annotate.modules.matching.sequences import (
    backward_rows,
    common_positions,
    forward_rows,
    names_inside,
    recomputed_rows,
    repeated_rows,
    with_neighbors,
)
from stepscope.trace.schema import DEVICE_WORK, STAGES
from stepscope.trace.trace import Trace

BACKWARD_UNKNOWN = "backward_modules_unknown"
_UNROLLED = (
    "the modules of backward are unknown: nothing links it to forward, and recurrent layers ran "
    "there as the products of each time step"
)
_LOSS = STAGES.index("loss")
_BACKWARD = STAGES.index("backward")


def from_tree(trace: Trace) -> Evidence | None:
    """Modules from the model tree in the trace's metadata, matched with operators by name.

    Args:
        trace: with launches, backward links, steps and stages.

    Returns:
        The modules, the module of each identifying event, and the number of forward calls; None
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
    forward = forward_rows(trace, matcher.recognized)
    matcher.claim(forward)
    matcher.claim_again(forward, recomputed_rows(trace, matcher.recognized))
    unknown = 0
    if not (trace.events["forward_event"] >= 0).any():
        unknown = matcher.claim_backward(backward_rows(trace))
    warnings = ((BACKWARD_UNKNOWN, _UNROLLED, unknown),) if unknown else ()
    return Evidence("matched", modules, matcher.claims, matcher.calls, warnings=warnings)


@dataclass
class _MatchedPass:
    """The result for one pass: the module of each operator, the calls, and the identifying bits."""

    modules: Ids
    calls: MatchedCalls
    bits: list[int]


class _Matcher:
    """The events claimed so far for the modules of a tree.

    Attributes:
        recognized: events whose name matches the role of a module, shape (events,).
        claims: the module of each identifying event, or -1, int32, shape (events,).
        calls: calls of each module, int64, shape (modules,).
    """

    def __init__(self, trace: Trace, modules: Sequence[Module]) -> None:
        self._trace = trace
        self._tree = complete(modules)
        self._modules = self._tree.modules
        self._names = trace.events.text("name")
        self._classes = [class_name(module) for module in self._modules]
        self._roles = Roles(self._modules, _work_names(trace, backward=False))
        self._root = root_shape(self._modules, self._roles, self._tree.doubtful)
        self._aligner = Aligner(self._root, self._roles.sure, self._roles.all_sizes)
        self._passes: dict[int, _MatchedPass] = {}
        self.recognized = self._names.where(lambda name: self._roles.bits_of(name) != 0)
        self.claims = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(modules), np.int64)

    def claim(self, passes: Sequence[Rows]) -> None:
        """Match the forward pass of each step; equal passes are matched once."""
        known: dict[bytes, _MatchedPass] = {}
        inside = names_inside(self._trace, self._opaque(passes))
        for rows in passes:
            key = self._names.codes[rows].tobytes()
            if key not in known:
                known[key] = self._match(rows, inside)
            self._passes[self._step(rows)] = known[key]
            self.claims[rows] = self._given(known[key].modules)
            called = np.array(known[key].calls.module[1:], np.int64)
            called = self._tree.origin[called[self._tree.own[called]]]
            self.calls += np.bincount(called, minlength=len(self.calls))

    def claim_again(self, forward: Sequence[Rows], recomputed: Sequence[Rows]) -> None:
        """Recomputed operators get the module of the forward operator that they repeat."""
        nodes = np.flatnonzero(is_backward(self._trace.events))
        passes = {self._step(rows): rows for rows in forward}
        for rows in recomputed:
            origin = passes.get(self._step(rows), rows[:0])
            first = repeated_rows(self._names.codes, nodes, origin, rows)
            self.claims[rows] = np.where(first >= 0, self.claims[first], -1)

    def claim_backward(self, passes: Sequence[Rows]) -> int:
        """Align gradient nodes, last first, with the calls of the forward pass.

        Returns:
            How many passes have no modules: a recurrent layer's gradients look like any others.
        """
        unknown = 0
        roles = Roles(self._modules, _work_names(self._trace, backward=True), backward=True)
        known: dict[tuple[bytes, int], Ids] = {}
        for rows in passes:
            forward = self._passes.get(self._step(rows))
            key = self._names.codes[rows].tobytes(), id(forward)
            if forward and key not in known:
                names = [self._names[row] or "" for row in rows]
                bits = [roles.bits_of(name) for name in names]
                if roles.unrolls & _any(forward.bits) & ~_any(bits):
                    known[key] = np.full(len(rows), -1)
                else:
                    known[key] = self._follow(forward, names, bits)
            self.claims[rows] = self._given(known[key]) if key in known else -1
            unknown += bool((self.claims[rows] < 0).all())
        return unknown

    def _given(self, modules: Ids) -> Ids:
        """Modules of the given tree, of modules of the completed tree."""
        return np.append(self._tree.origin, -1)[modules]

    def _step(self, rows: Rows) -> int:
        return int(self._trace.events["step"][rows[0]])

    def _opaque(self, passes: Sequence[Rows]) -> Mask:
        """Operators with an uninformative name: what they run may identify them."""
        opaque = np.zeros(len(self._names), np.bool_)
        for rows in passes:
            opaque[rows] = True
        named = self._names.where(lambda name: name.startswith("aten::"))
        return opaque & ~self.recognized & ~named

    def _match(self, rows: Rows, inside: Mapping[int, set[int]]) -> _MatchedPass:
        bits = [self._bits_of(event, inside.get(event, ())) for event in rows.tolist()]
        positions = [position for position, value in enumerate(bits) if value]
        identifying = [bits[position] for position in positions]
        owned = self._aligner.explain(identifying)
        calls = MatchedCalls.of(self._root, owned, len(identifying), self._classes)
        names = [self._names[row] or "" for row in rows]
        modules = np.array(calls.module)[owners(calls, positions, names)]
        # A loss outside the modules of the tree belongs to the training loop.
        loss = (self._trace.events["stage"][rows] == _LOSS) & (np.array(bits) == 0)
        return _MatchedPass(np.where(loss, -1, modules), calls, identifying)

    def _follow(self, forward: _MatchedPass, names: Sequence[str], bits: Sequence[int]) -> Ids:
        pairs = with_neighbors(common_positions(forward.bits, bits), forward.bits, bits)
        claimed = [forward.calls.claimed[operator] for operator, _ in pairs]
        calls = replace(forward.calls, claimed=claimed)
        found = owners(calls, [node for _, node in pairs], names)
        return np.array(calls.module)[found]

    def _bits_of(self, event: int, inside: Iterable[int]) -> int:
        """Bits of the roles that an operator may play, and of the sizes of matching leaves."""
        bits = 0
        for code in (int(self._names.codes[event]), *inside):
            bits |= self._roles.bits_of(self._names.values[code])
        if bits & self._roles.sure and self._roles.all_sizes:
            shapes = self._trace.event_arguments(event).get("Input Dims", ())
            bits |= self._roles.sizes_of(bits, shapes)
        return bits


def _any(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _work_names(trace: Trace, backward: bool) -> Sequence[str]:
    """The names of operators and device work in backward, or in everything else."""
    events = trace.events
    work = events.text("category").mask("cpu_op", *DEVICE_WORK)
    work &= (events["stage"] == _BACKWARD) == backward
    return events.text("name").take(work).compact().values
