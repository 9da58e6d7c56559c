"""Modules told by a model tree alone: its leaves matched with the names of operators, in order.

The tree's leaves tell which operators to look for (`operator_names`), the operators of each step
are laid out in a row (`operator_rows`), the calls that best explain them are searched
(`call_search`), and what lies between goes to a neighbour or to the block around
(`between_calls`). Backward follows forward where the file links them; otherwise it is matched too,
last node first.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.between_calls import Calls, owners
from stepscope.annotate.call_search import Search
from stepscope.annotate.module_evidence import Evidence, Module, tree_modules
from stepscope.annotate.module_parts import Roles, class_name, root_part
from stepscope.annotate.operator_rows import (
    backward_rows,
    forward_rows,
    names_inside,
    recomputed_rows,
)
from stepscope.annotate.recomputed import repeated_rows
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
    back = trace.events["stage"] == _BACKWARD
    matcher = _Matcher(trace, modules, ~back)
    forward = forward_rows(trace, matcher.recognised)
    for rows in forward:
        matcher.claim(rows)
    matcher.claim_again(forward, recomputed_rows(trace, matcher.recognised))
    claims = matcher.claims
    if not (trace.events["forward_event"] >= 0).any():
        backward = _Matcher(trace, modules, back)
        for rows in backward_rows(trace):
            backward.claim(rows)
        claims = np.where(backward.claims >= 0, backward.claims, claims)
    return Evidence("matched", modules, claims, matcher.calls)


class _Matcher:
    """What has been claimed so far for the modules of a tree, from the chosen events.

    Attributes:
        recognised: events whose name a module asks for, shape (events,).
        claims: int32, shape (events,), the module of each event that tells one, or -1.
        calls: int64, shape (modules,), how often each was called.
    """

    def __init__(self, trace: Trace, modules: Sequence[Module], chosen: Mask) -> None:
        self._trace = trace
        self._names = trace.events.text("name")
        self._classes = [class_name(module) for module in modules]
        self._roles = Roles(modules, _worked(trace, chosen))
        self._bits = [self._roles.bits_of.get(name, 0) for name in self._names.values]
        self._root = root_part(modules, self._roles)
        self._search = Search(self._roles.sure)
        self._known: dict[tuple[int, ...], tuple[list[int], Ids]] = {}
        self.recognised = self._names.where(lambda name: self._roles.bits_of.get(name, 0) != 0)
        self.claims = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(modules), np.int64)

    def claim(self, rows: Rows) -> None:
        """Match one pass through the model; passes alike are matched once."""
        bits = self._bits_of(rows)
        key = (*self._names.codes[rows].tolist(), *bits)
        if key not in self._known:
            self._known[key] = self._match(bits, rows)
        modules, calls = self._known[key]
        self.claims[rows] = modules
        self.calls += calls
        loss = (self._trace.events["stage"][rows] == _LOSS) & (np.array(bits) == 0)
        self.claims[rows[loss]] = -1

    def claim_again(self, forward: Sequence[Rows], recomputed: Sequence[Rows]) -> None:
        """Recomputed operators belong to the module of the forward operator that they repeat."""
        events = self._trace.events
        passes = {int(events["step"][rows[0]]): rows for rows in forward}
        for rows in recomputed:
            first = repeated_rows(events, passes.get(int(events["step"][rows[0]]), rows[:0]), rows)
            self.claims[rows] = np.where(first >= 0, self.claims[first], -1)

    def _bits_of(self, rows: Rows) -> list[int]:
        """The roles that each operator may play, by its own name or by what it runs."""
        bits = [self._bits[code] for code in self._names.codes[rows].tolist()]
        opaque = np.zeros(len(self._names), np.bool_)
        opaque[rows[[not one for one in bits]]] = True
        # aten names speak for themselves
        opaque &= ~self._names.where(lambda name: name.startswith("aten::"))
        inside = names_inside(self._trace, opaque) if opaque.any() else {}
        for position, event in enumerate(rows.tolist()):
            for code in inside.get(event, ()):
                bits[position] |= self._bits[code]
        return bits

    def _match(self, bits: Sequence[int], rows: Rows) -> tuple[list[int], Ids]:
        telling = [position for position, one in enumerate(bits) if one]
        found = self._search.explain(self._root, [bits[position] for position in telling])
        calls = Calls.of(self._root, found)
        names = [self._names[row] or "" for row in rows]
        owner = owners(calls, telling, names, self._classes)
        modules = np.array(calls.module, np.int64)
        counts = np.bincount(modules[1:], minlength=len(self._classes))
        return modules[owner].tolist(), counts


def _worked(trace: Trace, chosen: Mask) -> Sequence[str]:
    """The names of operators and of device work among the chosen events."""
    work = trace.events.text("category").mask("cpu_op", *DEVICE_WORK)
    return trace.events.text("name").take(work & chosen).compact().values
