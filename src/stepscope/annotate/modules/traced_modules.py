"""Modules of compiled operations from the stacks in which they were traced.

Flax's nnx, Equinox and plain classes name no scopes, but a model is called through its classes:
`Net.__call__` calls `Block.__call__` calls `Linear.__call__`. A module is a class, called from one
line of the module around it. Instances that one line calls cannot be told apart: a loop over layers
is one module, with as many calls. In a model of plain functions, functions take the place of
classes (`traced_functions`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from stepscope.annotate.modules.module_evidence import Evidence, Module, most_repeated
from stepscope.annotate.modules.traced_functions import function_names
from stepscope.annotate.names.origin_frames import frames_of_events
from stepscope.annotate.names.traced_frames import frames_below_call
from stepscope.arrays import Ids, Mask
from stepscope.trace.schema import FORWARD_STAGES, STAGES
from stepscope.trace.trace import Trace

_CALL = re.compile(r"^([A-Za-z_]\w*)\.(?:__call__|forward)$")
# Frameworks that name scopes, and wrappers of functions, whose classes are no modules.
_NO_MODULES = re.compile(
    r"/flax/(?:linen/|core/|nnx/(?:transforms/|training/|\w+\.py$))|/haiku/_src/|/keras/src/"
    r"|/equinox/_|-packages/(?:jax|optax)/|/stepscope/capture/"
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
    frames = trace["frames"]
    rows = zip(frames.text("function"), frames.text("file"), strict=True)
    return _from_frames(trace, [_class_of(function or "", file or "") for function, file in rows])


def from_functions(trace: Trace) -> Evidence | None:
    """The same from the user's functions, where the model has no classes."""
    outer, kept = frames_below_call(trace)
    differentiated = trace.events.text("scope").where(lambda text: "jvp(" in text)
    chosen = differentiated if differentiated.any() else _of_passes(trace)
    used = np.append(kept, -1)[frames_of_events(trace)[chosen]]
    return _from_frames(trace, function_names(trace["frames"], outer, used[used >= 0]))


def _class_of(function: str, file: str) -> str:
    """The class of the module that a frame calls, empty if none."""
    found = _CALL.match(function)
    return found[1] if found and not _NO_MODULES.search(file) else ""


def _from_frames(trace: Trace, names: list[str]) -> Evidence | None:
    """Modules where each frame with a name begins one."""
    places, of_frame = _places(trace, names)
    module_of = np.append(of_frame, -1)[frames_of_events(trace)]
    call_of = np.where(_of_passes(trace), module_of, -1)
    used = _with_outer(np.unique(call_of[call_of >= 0]).tolist(), places)
    if not used:
        return None
    # As they were traced, which is the order of the forward pass; parents come first.
    number = {place: index for index, place in enumerate(sorted(used))}
    modules = _modules([places[place] for place in number], number)
    table = np.array([number.get(place, -1) for place in range(len(places))] + [-1], np.int32)
    call_of = table[call_of]
    calls = most_repeated(trace.events, call_of, modules)

    alike = _alike(places, number)

    def of_origin(scope: str, frame: int) -> int:
        place = int(of_frame[frame]) if frame >= 0 else -1
        while place >= 0 and place not in alike:
            place = places[place].parent
        return alike.get(place, -1)

    return Evidence("stacks", modules, call_of, calls, True, of_origin)


def _of_passes(trace: Trace) -> Mask:
    """The compiled operations of the forward and the backward pass."""
    passes = [STAGES.index(stage) for stage in (*FORWARD_STAGES, "backward")]
    result: Mask = (trace.events["origin"] >= 0) & np.isin(trace.events["stage"], passes)
    return result


def _places(trace: Trace, names: list[str]) -> tuple[list[_Place], Ids]:
    """The modules in all stacks, parents first, and the module in which each frame is, or -1."""
    number: dict[_Place, int] = {}
    files, lines = list(trace["frames"].text("file")), trace["frames"]["line"].tolist()
    outer, kept = frames_below_call(trace)
    result = np.full(len(names), -1, np.int64)
    for row, above in enumerate(outer.tolist()):
        around = int(result[above]) if above >= 0 else -1
        if above >= 0 and names[row]:
            place = _Place(around, names[row], files[above] or "", lines[above])
            around = number.setdefault(place, len(number))
        result[row] = around
    return list(number), np.where(kept >= 0, result[kept], -1)


def _with_outer(used: list[int], places: list[_Place]) -> set[int]:
    found = set(used)
    for place in used:
        while (place := places[place].parent) >= 0:
            found.add(place)
    return found


def _alike(places: list[_Place], number: dict[int, int]) -> dict[int, int]:
    """The module of each place, also of calls of a whole model from another line.

    An evaluation calls the model where no pass does, and inside it is the same.
    """
    known = {places[place]: place for place in number}
    roots = [place for place in number if places[place].parent < 0]
    kinds = [places[root].kind for root in roots]
    models = {kind: root for kind, root in zip(kinds, roots, strict=True) if kinds.count(kind) == 1}
    same: dict[int, int] = {}
    for index, place in enumerate(places):  # parents come first
        found = known.get(place._replace(parent=same.get(place.parent, place.parent)))
        if found is None and place.parent < 0:
            found = models.get(place.kind)
        if found is not None:
            same[index] = found
    return {index: number[found] for index, found in same.items()}


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
