"""The modules of an optimizer's compiled operations: those whose parameters they update.

An update takes the parameter, which the forward pass gives to a module and whose name may hold the
module's path; and the gradient, which the module's backward pass computed. What takes several, such
as a norm of all gradients, belongs to the innermost module around all of theirs; so does a sum of
gradients over devices, which is part of the backward pass. Where none of this
is known, an update belongs to the model, if there is just one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from stepscope.annotate.modules.argument_names import Path, owner_of
from stepscope.annotate.modules.module_evidence import Evidence, Module
from stepscope.arrays import Ids32
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_OF_GRADIENTS = [STAGES.index(stage) for stage in ("optimizer", "backward")]
_NONE = -1
_Input = dict[str, Any]


def with_updates(trace: Trace, evidence: Evidence) -> Ids32:
    """The module of each event, as the evidence has it, with those of operations on gradients.

    Returns:
        int32, shape (events,), -1 for none.
    """
    events = trace.events
    updates = np.isin(events["stage"], _OF_GRADIENTS) & (events["origin"] >= 0)
    updates &= evidence.call_of < 0
    module = _modules_by_group(trace, evidence, set(np.unique(events["origin"][updates]).tolist()))
    table = np.full(len(trace["origins"]) + 1, _NONE, np.int32)
    table[list(module)] = list(module.values())
    return np.where(updates, table[events["origin"]], evidence.call_of).astype(np.int32)


def _modules_by_group(trace: Trace, evidence: Evidence, wanted: set[int]) -> dict[int, int]:
    inputs: dict[int, list[_Input]] = defaultdict(list)
    for row in trace["inputs"].rows():
        if row["first"] in wanted:
            inputs[row["first"]].append(row)
    owners = _Owners(trace, evidence)
    return {first: owners.of(rows) for first, rows in inputs.items()}


class _Owners:
    """Finds the modules that inputs of compiled operations belong to."""

    def __init__(self, trace: Trace, evidence: Evidence) -> None:
        self._modules, self._of_origin = evidence.modules, evidence.of_origin
        self._by_path: dict[Path, int] = {
            tuple(module.path.split(".")): number for number, module in enumerate(evidence.modules)
        }
        self._uses = {
            name: (scope, frame)
            for name, _, _, scope, frame, _ in trace.metadata.properties.get("arguments", ())
            if scope
        }
        roots = [number for number, module in enumerate(evidence.modules) if module.parent < 0]
        self._model = roots[0] if len(roots) == 1 else _NONE

    def of(self, inputs: Sequence[_Input]) -> int:
        """The module around all inputs, by names of arguments, else their uses, else gradients."""
        names = [row["argument"] for row in inputs if row["argument"]]
        gradients = [(row["scope"], row["frame"]) for row in inputs if not row["argument"]]
        kinds = (
            (self._by_path.get(owner_of(name, self._by_path), _NONE) for name in names),
            (self._origin(*self._uses[name]) for name in names if name in self._uses),
            (self._origin(*gradient) for gradient in gradients),
        )
        found = ([module for module in kind if module >= 0] for kind in kinds)
        known = next(filter(None, found), [self._model])
        return reduce(lambda first, second: _shared(self._modules, first, second), known)

    def _origin(self, scope: str | None, frame: int | None) -> int:
        return self._of_origin(scope or "", _NONE if frame is None else frame)


def _shared(modules: Sequence[Module], first: int, second: int) -> int:
    """The innermost module that is or encloses both, -1 for none."""
    around = set(_enclosing(modules, first))
    return next((module for module in _enclosing(modules, second) if module in around), _NONE)


def _enclosing(modules: Sequence[Module], module: int) -> Iterable[int]:
    while module >= 0:
        yield module
        module = modules[module].parent
