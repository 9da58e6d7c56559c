"""Modules of compiled operations from the stacks in which they were traced.

Flax's nnx, Equinox and plain classes name no scopes, but a model is called through its classes:
`Net.__call__` calls `Block.__call__` calls `Linear.__call__`. A module is a class, called from one
line of the module around it. Instances that one line calls cannot be told apart: a loop over layers
is one module, with as many calls.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from stepscope.annotate.modules.module_evidence import Evidence, Module, most_repeated
from stepscope.arrays import Ids
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_CALL = re.compile(r"^([A-Za-z_]\w*)\.(?:__call__|forward)$")
# Frameworks that name scopes, and wrappers of functions, whose classes are no modules.
_NO_MODULES = re.compile(
    r"/(?:flax/(?:linen|core|nnx/(?:transforms|training|\w+\.py$))|haiku/_src|keras/src"
    r"|equinox/_|jax|optax|stepscope)(?:/|$|\w+\.py$)"
)


class _Place(NamedTuple):
    """What tells modules apart: the module around, the class, and the line of the call."""

    parent: int
    kind: str
    file: str
    line: int


def from_stacks(trace: Trace) -> Evidence | None:
    """Modules from the classes in the stacks of compiled operations, None without any.

    A fused operation belongs to the module of its largest part.
    """
    events = trace.events
    passes = [STAGES.index(stage) for stage in (*FORWARD_STAGES, "backward")]
    traced = (events["origin"] >= 0) & np.isin(events["stage"], passes)
    places, of_frame = _places(trace["frames"])
    module_of = np.append(of_frame, -1)[_frames_of_origins(trace["origins"])]
    call_of = np.where(traced, np.append(module_of, -1)[events["origin"]], -1)
    used = _with_outer(np.unique(call_of[call_of >= 0]).tolist(), places)
    if not used:
        return None
    # As they were traced, which is the order of the forward pass; parents come first.
    number = {place: index for index, place in enumerate(sorted(used))}
    modules = _modules([places[place] for place in number], number)
    table = np.array([number.get(place, -1) for place in range(len(places))] + [-1], np.int32)
    call_of = table[call_of]
    return Evidence("stacks", modules, call_of, most_repeated(events, call_of, modules), own=True)


def _frames_of_origins(origins: Table) -> Ids:
    """The frame of the largest origin of each group, at the group's first row."""
    order = np.lexsort((-origins["share"], origins["first"]))
    first, place = np.unique(origins["first"][order], return_index=True)
    result = np.full(len(origins), -1, np.int64)
    result[first] = origins["frame"][order[place]]
    return result


def _places(frames: Table) -> tuple[list[_Place], Ids]:
    """The modules in all stacks, parents first, and the module in which each frame is, or -1."""
    number: dict[_Place, int] = {}
    functions, files = frames.text("function"), frames.text("file")
    lines, parents = frames["line"].tolist(), frames["parent"].tolist()
    result = np.full(len(frames), -1, np.int64)
    for row, above in enumerate(parents):
        around = int(result[above]) if above >= 0 else -1
        found = _CALL.match(functions[row] or "")
        if found and above >= 0 and not _NO_MODULES.search(files[row] or ""):
            place = _Place(around, found[1], files[above] or "", lines[above])
            around = number.setdefault(place, len(number))
        result[row] = around
    return list(number), result


def _with_outer(used: list[int], places: list[_Place]) -> set[int]:
    found = set(used)
    for place in used:
        while (place := places[place].parent) >= 0:
            found.add(place)
    return found


def _modules(places: list[_Place], number: dict[int, int]) -> list[Module]:
    """The modules; siblings of one class are numbered in the order of their calls."""
    siblings: dict[tuple[int, str], int] = {}
    for place in places:
        key = place.parent, place.kind
        siblings[key] = siblings.get(key, 0) + 1
    seen: dict[tuple[int, str], int] = {}
    modules: list[Module] = []
    for place in places:
        key = place.parent, place.kind
        index = seen[key] = seen.get(key, -1) + 1
        name = f"{place.kind}_{index}" if siblings[key] > 1 else place.kind
        parent = number.get(place.parent, -1)
        path = f"{modules[parent].path}.{name}" if parent >= 0 else name
        facts = {"call_file": place.file, "call_line": place.line}
        modules.append(Module(path, name, place.kind, parent, facts))
    return modules
