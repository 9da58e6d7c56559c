"""Modules of compiled operations: from named scopes, or from the stacks of their tracing.

Flax's nnx, Equinox and plain classes name no scopes, but a model is called through its classes:
`Net.__call__` calls `Block.__call__` calls `Linear.__call__`. What encloses every differentiated
operation (the training step, the loss function) is no module (docs/design/modules.md).
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask
from stepscope.facts.annotate.jax.frames import frame_rows, frames_below_call, frames_of_events, is_users
from stepscope.facts.annotate.jax.scopes import scope_of
from stepscope.facts.annotate.module_evidence import Evidence, Module, chain_of
from stepscope.trace.schema import PASS_STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

# -- by scopes


def from_scopes(trace: Trace) -> Evidence | None:
    """Modules from the named scopes of compiled operations, for a model and its loss.

    The number of calls of a module is that of its most frequent operation.
    """
    events = trace.events
    text = events.text("scope")
    scoped = (text.codes >= 0) & events.text("stage").mask(*PASS_STAGES)
    if not scoped.any():
        return None
    modules: list[Module] = []
    number: dict[tuple[str, ...], int] = {}
    module_of = [-1] * len(text.values)
    for code in _in_order(events, scoped):
        module_of[code] = _add_scope(scope_of(text.values[code]).modules, modules, number)
    call_of = np.where(scoped, np.array([*module_of, -1], np.int32)[text.codes], -1)
    if not modules:
        return None
    calls = most_repeated(events, call_of, modules)
    of_origin = partial(_innermost, number)
    return Evidence("scopes", modules, call_of.astype(np.int32), calls, True, of_origin)


def _innermost(number: Mapping[tuple[str, ...], int], scope: str, frame: int) -> int:
    names = scope_of(scope).modules
    return next((number[names[:n]] for n in range(len(names), 0, -1) if names[:n] in number), -1)


def _in_order(events: Table, scoped: Mask) -> list[int]:
    """Codes of the scopes of some events, in order of the forward pass, then of the rest."""
    rows = np.flatnonzero(scoped)
    rows = rows[np.argsort(events.text("stage").take(rows).mask("backward"), kind="stable")]
    codes, first = np.unique(events["scope"][rows], return_index=True)
    return codes[np.argsort(first)].tolist()


def _add_scope(scope: tuple[str, ...], modules: list[Module], number: dict[tuple[str, ...], int]) -> int:
    """The index of the module of a scope, -1 for the root; adds enclosing modules first."""
    if not scope:
        return -1
    if scope not in number:
        parent = _add_scope(scope[:-1], modules, number)
        number[scope] = len(modules)
        modules.append(Module(".".join(scope), scope[-1], _INSTANCE.sub("", scope[-1]), parent))
    return number[scope]


def most_repeated(events: Table, call_of: Ids32, modules: list[Module]) -> Ids:
    """The count of the most frequent forward operation of each module.

    A module without operations of its own counts like its most called child.
    """
    rows = np.flatnonzero((call_of >= 0) & ~events.text("stage").mask("backward"))
    names = np.int64(events["name"].max(initial=0) + 1)
    keys, times = np.unique(call_of[rows] * names + events["name"][rows], return_counts=True)
    own = np.zeros(len(modules), np.int64)
    np.maximum.at(own, keys // names, times)
    result = own.copy()
    for number, module in reversed(list(enumerate(modules))):
        if module.parent >= 0 and not own[module.parent]:
            result[module.parent] = max(result[module.parent], result[number])
    return result


_INSTANCE = re.compile(r"_\d+$")


# -- by stacks

_CALL = re.compile(r"^([A-Za-z_]\w*)\.(?:__call__|forward)$")
# Frameworks that name scopes, and wrappers of functions, whose classes are no modules.
_NO_MODULES = re.compile(
    r"/flax/(?:linen/|core/|nnx/(?:transforms/|training/|\w+\.py$))|/haiku/_src/|/keras/src/"
    r"|/equinox/_|-packages/(?:jax|optax)/|/stepscope/(?:record|capture)/"
)


class _CalledPlace(NamedTuple):
    """What tells modules apart: the module around, the class, and the line of the call."""

    parent: int
    kind: str
    file: str
    line: int


def from_stacks(trace: Trace) -> Evidence | None:
    """Modules from the classes in the stacks of compiled operations, None without any.

    A fused operation belongs to the module of its largest part.
    """
    return _from_frames(trace, [_class_of(row.function, row.file) for row in frame_rows(trace["frames"])])


def from_functions(trace: Trace) -> Evidence | None:
    """The same from the user's functions, where the model has no classes."""
    outer, kept = frames_below_call(trace)
    differentiated = trace.events.text("scope").where(lambda text: "jvp(" in text)
    chosen = differentiated if differentiated.any() else _of_passes(trace)
    used = np.append(kept, -1)[frames_of_events(trace)[chosen]]
    return _from_frames(trace, function_names(trace["frames"], outer, used[used >= 0]))


def _class_of(function: str, file: str) -> str:
    found = _CALL.match(function)
    return found[1] if found and not _NO_MODULES.search(file) else ""


def _from_frames(trace: Trace, names: list[str]) -> Evidence | None:
    """Modules where each frame with a name begins one."""
    places, of_frame = _places(trace, names)
    module_of = np.append(of_frame, -1)[frames_of_events(trace)]
    call_of = np.where(_of_passes(trace), module_of, -1)
    inner = np.unique(call_of[call_of >= 0]).tolist()
    used = {outer for place in inner for outer in chain_of(place, lambda at: places[at].parent)}
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
    return (trace.events["origin"] >= 0) & trace.events.text("stage").mask(*PASS_STAGES)


def _places(trace: Trace, names: list[str]) -> tuple[list[_CalledPlace], Ids]:
    """The modules in all stacks, parents first, and the module in which each frame is, or -1."""
    number: dict[_CalledPlace, int] = {}
    rows = frame_rows(trace["frames"])
    outer, kept = frames_below_call(trace)
    result = np.full(len(names), -1, np.int64)
    for row, above in enumerate(outer.tolist()):
        around = int(result[above]) if above >= 0 else -1
        if above >= 0 and names[row]:
            place = _CalledPlace(around, names[row], rows[above].file, rows[above].line)
            around = number.setdefault(place, len(number))
        result[row] = around
    return list(number), np.where(kept >= 0, result[kept], -1)


def _alike(places: list[_CalledPlace], number: dict[int, int]) -> dict[int, int]:
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


def _modules(places: list[_CalledPlace], number: dict[int, int]) -> list[Module]:
    """The modules; siblings of one class are numbered in the order of their calls."""
    siblings = Counter((place.parent, place.kind) for place in places)
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


# -- by functions


def function_names(frames: Table, outer: Ids, used: Ids) -> list[str]:
    """The name of the module that each frame begins, empty if none; `outer` as in `frames_below_call`."""
    rows, above = frame_rows(frames), outer.tolist()
    chains = [chain_of(row, above.__getitem__) for row in np.unique(used).tolist()]
    around = _depth_of_all([[(rows[row].name, rows[row].file) for row in chain] for chain in chains])
    inner = {row for chain in chains for row in chain[around:]}
    return [
        row.name if number in inner and is_users(row.file) and row.name.isidentifier() else ""
        for number, row in enumerate(rows)
    ]


def _depth_of_all(chains: list[list[tuple[str, str]]]) -> int:
    """How many of the outermost functions all chains share."""
    levels = zip(*chains, strict=False)
    return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, levels))


# -- evaluation


def with_evaluation(trace: Trace, evidence: Evidence) -> Ids32:
    """The module of each event, as the evidence has it, with those of compiled evaluations; (events,)."""
    events = trace.events
    evaluates = events.text("stage").mask("evaluation") & (events["origin"] >= 0)
    rows = np.flatnonzero(evaluates & (evidence.call_of < 0))
    traced = np.stack([events["scope"][rows], frames_of_events(trace)[rows]], axis=1)
    places, place = np.unique(traced, axis=0, return_inverse=True)
    scopes = events.text("scope").values
    found = [
        evidence.of_origin((scopes[scope] or "") if scope >= 0 else "", frame)
        for scope, frame in places.tolist()
    ]
    module = evidence.call_of.astype(np.int32)
    module[rows] = np.array(found, np.int32)[place.reshape(-1)]
    return module
