"""Modules inside of models that TorchScript made: their parts are not called from Python.

torch.profiler notes in each operator's arguments which modules the script was in:
`TOP(Net)::forward.layers(Stack)::forward.0(Linear)::forward.`

Source: torch/csrc/jit/runtime/interpreter.cpp (`currentModuleHierarchy`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from stepscope.annotate.links.launches import on_host
from stepscope.annotate.module_evidence import Evidence
from stepscope.arrays import Ids, Ids32, Mask, Rows
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.trace import Trace

_HIERARCHY = re.compile(rb'"Module Hierarchy": ?"([^"]*)"')
_PART = re.compile(r"(\w+)\([^)]*\)::[^.]*\.")
_ENGINE = "autograd::engine::evaluate_function: "
_FORWARD = [STAGES.index(stage) for stage in FORWARD_STAGES]


class ScriptedOperators(NamedTuple):
    """The module of each event inside a scripted model, -1 elsewhere, and calls of each module."""

    module: Ids32
    calls: Ids


def scripted_operators(trace: Trace, evidence: Evidence) -> ScriptedOperators | None:
    """The modules that operators of scripted models name; None where no model is scripted."""
    scripted = np.array([bool(module.facts.get("scripted")) for module in evidence.modules])
    if not scripted.any():
        return None
    around = inherit(trace.events["parent"], evidence.call_of)
    inside = on_host(trace) & np.append(scripted, False)[around] & (evidence.call_of < 0)
    inside &= np.isin(trace.events["stage"], _FORWARD)
    paths = _paths(trace, inside)
    number = {module.path: place for place, module in enumerate(evidence.modules)}
    module = np.full(len(trace.events), -1, np.int32)
    calls = np.zeros(len(evidence.modules), np.int64)
    last: tuple[int, ...] = ()
    for row in np.flatnonzero(inside).tolist():
        found = _modules_on(paths.get(row, ()), int(around[row]), evidence, number)
        module[row] = found[-1]
        calls[[inner for inner in found[1:] if inner not in last]] += 1
        last = found
    return ScriptedOperators(module, calls)


def _paths(trace: Trace, inside: Mask) -> dict[int, tuple[str, ...]]:
    """The names of the modules that each operator is in, below the scripted model, by event.

    torch notes no modules for nodes of the gradient graph, but reads the notes as if it did: after
    the first backward pass each operator has those of another. Whichever of the two readings
    gives more operators of scripted models a module is right.
    """
    result: dict[int, tuple[str, ...]] = {}
    for track in np.unique(trace.events["track"][inside]).tolist():
        rows = _operators(trace, track)
        noted = _noted(trace, rows)
        moved = rows[~_of_gradients(trace)[rows]]
        read = {"as noted": rows, "moved": moved}
        fits = {
            name: sum(bool(path) for row, path in zip(of, noted, strict=False) if inside[row])
            for name, of in read.items()
        }
        best = read[max(fits, key=lambda name: fits[name])]
        result |= dict(zip(best.tolist(), noted, strict=False))
    return result


def _operators(trace: Trace, track: int) -> Rows:
    """All that torch records on a thread, in order."""
    kinds = trace.events.text("category").mask("cpu_op", "annotation", "communication")
    return np.flatnonzero(kinds & (trace.events["track"] == track) & on_host(trace))


def _of_gradients(trace: Trace) -> Mask:
    """Nodes of the gradient graph, each inside of the engine's range for it."""
    events, names = trace.events, trace.events.text("name")
    engine = names.where(lambda name: name.startswith(_ENGINE))
    result = np.zeros(len(events), np.bool_)
    for row in np.flatnonzero((events["parent"] >= 0) & engine[events["parent"]]).tolist():
        result[row] = names[int(events["parent"][row])] == _ENGINE + (names[row] or "")
    return result


def _noted(trace: Trace, rows: Rows) -> list[tuple[str, ...]]:
    """The modules in the arguments of events, without the outermost."""
    source = trace.events["source"][rows]
    order = np.argsort(source, kind="stable")
    found: list[tuple[str, ...]] = [()] * len(rows)
    for place, text in zip(order.tolist(), trace.arguments.texts(source[order]), strict=True):
        if match := _HIERARCHY.search(text):
            found[place] = tuple(_PART.findall(match[1].decode("utf-8", "replace")))
    return found


def _modules_on(
    path: tuple[str, ...], model: int, evidence: Evidence, number: dict[str, int]
) -> tuple[int, ...]:
    """The scripted model and the modules on the way to an operator, as far as the tree has them."""
    found, above = [model], evidence.modules[model].path
    for name in path[1:]:  # the first is the model
        above = f"{above}.{name}" if above else name
        if above not in number:
            break
        found.append(number[above])
    return tuple(found)
