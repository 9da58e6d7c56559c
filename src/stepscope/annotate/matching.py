"""Modules told by a model tree alone: its leaves matched with the names of operators, in order.

The tree's leaves tell which operators to look for (`operator_names`), the operators of each step
are laid out in a row (`operator_rows`), the calls that best explain them are searched
(`call_search`), and what lies between goes to a neighbour or to the block around
(`between_calls`). Backward follows forward where the file links them; otherwise it is matched too,
last node first.

Source: HOTLINE section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.between_calls import Calls, owners
from stepscope.annotate.call_search import Search
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
    back = trace.events["stage"] == _BACKWARD
    matcher = _Matcher(trace, modules, ~back)
    forward = forward_rows(trace, matcher.recognised)
    matcher.claim(forward)
    matcher.claim_again(forward, recomputed_rows(trace, matcher.recognised))
    claims = matcher.claims
    if not (trace.events["forward_event"] >= 0).any():
        backward = _Matcher(trace, modules, back)
        backward.claim(backward_rows(trace))
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
        self._search = Search(self._roles.sure, self._roles.all_sizes)
        self.recognised = self._names.where(lambda name: self._roles.bits_of.get(name, 0) != 0)
        self.claims = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(modules), np.int64)

    def claim(self, passes: Sequence[Rows]) -> None:
        """Match passes through the model; those of the same operators are matched once."""
        known: dict[bytes, tuple[list[int], Ids]] = {}
        inside = names_inside(self._trace, self._opaque(passes))
        for rows in passes:
            key = self._names.codes[rows].tobytes()
            if key not in known:
                known[key] = self._match(rows, inside)
            modules, calls = known[key]
            self.claims[rows] = modules
            self.calls += calls

    def claim_again(self, forward: Sequence[Rows], recomputed: Sequence[Rows]) -> None:
        """Recomputed operators belong to the module of the forward operator that they repeat."""
        events = self._trace.events
        passes = {int(events["step"][rows[0]]): rows for rows in forward}
        for rows in recomputed:
            first = repeated_rows(events, passes.get(int(events["step"][rows[0]]), rows[:0]), rows)
            self.claims[rows] = np.where(first >= 0, self.claims[first], -1)

    def _opaque(self, passes: Sequence[Rows]) -> Mask:
        """Operators whose own name says nothing: what they run may."""
        opaque = np.zeros(len(self._names), np.bool_)
        for rows in passes:
            opaque[rows] = True
        return (
            opaque & ~self.recognised & ~self._names.where(lambda name: name.startswith("aten::"))
        )

    def _match(self, rows: Rows, inside: Mapping[int, set[int]]) -> tuple[list[int], Ids]:
        bits = [self._bits_of(event, inside.get(event, ())) for event in rows.tolist()]
        telling = [position for position, one in enumerate(bits) if one]
        found = self._search.explain(self._root, [bits[position] for position in telling])
        calls = Calls.of(self._root, found)
        names = [self._names[row] or "" for row in rows]
        modules = np.array(calls.module)
        owner = modules[owners(calls, telling, names, self._classes)]
        # A loss that no module of the tree computes is the training loop's.
        loss = (self._trace.events["stage"][rows] == _LOSS) & (np.array(bits) == 0)
        counts = np.bincount(modules[1:], minlength=len(self._classes))
        return np.where(loss, -1, owner).tolist(), counts

    def _bits_of(self, event: int, inside: Iterable[int]) -> int:
        """The roles that an operator may play, and the sizes of leaves that it may be one of."""
        bits = 0
        for code in (int(self._names.codes[event]), *inside):
            bits |= self._bits[code]
        if bits & self._roles.sure and self._roles.all_sizes:
            shapes = self._trace.event_arguments(event).get("Input Dims", ())
            bits |= self._roles.sizes_of(bits, shapes)
        return bits


def _worked(trace: Trace, chosen: Mask) -> Sequence[str]:
    """The names of operators and of device work among the chosen events."""
    work = trace.events.text("category").mask("cpu_op", *DEVICE_WORK)
    return trace.events.text("name").take(work & chosen).compact().values
