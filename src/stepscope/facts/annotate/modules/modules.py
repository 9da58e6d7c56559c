"""Attribute events to modules, forward and backward."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask, Rows
from stepscope.facts.annotate.jax.modules import from_functions, from_scopes, from_stacks, with_evaluation
from stepscope.facts.annotate.jax.parameters import parameter_sizes, sizes_by_use, with_updates
from stepscope.facts.annotate.links.cuda_graphs import replayed_modules
from stepscope.facts.annotate.links.launches import at_launch, caller_of, on_host
from stepscope.facts.annotate.module_evidence import Evidence, Module, chain_of, tree_modules
from stepscope.facts.annotate.modules.costs import module_table
from stepscope.facts.annotate.modules.inductor_graphs import compiled_operators
from stepscope.facts.annotate.modules.matching.matching import from_tree
from stepscope.facts.annotate.range_names import ENGINE, MODULE_FRAME, MODULE_RANGE
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import FORWARD_STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_DEEPEST = 100  # levels of modules; models have 20, and a path names all above


def attribute_modules(trace: Trace) -> Trace:
    """Fill the table `modules`, and the module of every event (docs/design/modules.md)."""
    evidence = from_ranges(trace) or from_frames(trace)
    rows, paths, classes = replayed_modules(trace)
    evidence = evidence or (None if len(rows) else _of_compiled(trace)) or from_tree(trace)
    evidence = _with_captured(trace, evidence, rows, paths, classes) if any(paths) else evidence
    if evidence is None:
        return trace
    call_of, calls = evidence.call_of, np.zeros(len(evidence.modules), np.int64)
    if scripted := scripted_operators(trace, evidence):
        call_of = np.where(scripted.module >= 0, scripted.module, call_of)
        calls = calls + scripted.calls
    if compiled := compiled_operators(trace, evidence):
        call_of = np.where(compiled.module >= 0, compiled.module, call_of)
        calls = calls + compiled.calls
        trace = trace.with_table(compiled.shares).with_warnings(compiled.warnings())
    module = call_of if evidence.own else _by_call(trace, call_of)
    captured = evidence.call_of[rows]
    module[rows] = np.where(captured >= 0, captured, module[rows])
    trace = trace.with_events(module=module)
    table = module_table(trace, evidence)
    return trace.with_table(table.with_columns(calls=table["calls"] + calls))


def _with_captured(
    trace: Trace, evidence: Evidence | None, rows: Ids, paths: list[str], classes: Mapping[str, str]
) -> Evidence:
    """The modules of a trace, and those in which work of CUDA graphs (`rows`) was captured."""
    evidence = evidence or Evidence("captured", [], np.full(len(trace.events), -1, np.int32))
    modules, call_of = list(evidence.modules), evidence.call_of.copy()
    number = _numbered(modules, set(paths) - {""}, classes)
    call_of[rows] = [number.get(path, -1) for path in paths]
    added = np.zeros(len(modules) - len(evidence.modules), np.int64)
    calls = None if evidence.calls is None else np.append(evidence.calls, added)
    return replace(evidence, modules=modules, call_of=call_of, calls=calls)


def _of_compiled(trace: Trace) -> Evidence | None:
    """Modules of compiled operations by scopes or by stacks, whichever tells more of them apart.

    Of equal ones, whichever shows more of them inside others: the scopes of Equinox name only the
    classes of its layers. Functions count only where there are neither scopes nor classes.
    """

    def distinct_and_nested(evidence: Evidence) -> tuple[int, int]:
        return len(evidence.modules), sum(module.parent >= 0 for module in evidence.modules)

    found = [evidence for evidence in (from_scopes(trace), from_stacks(trace)) if evidence]
    chosen = max(found, key=distinct_and_nested, default=None) or from_functions(trace)
    if chosen is None:
        return None
    chosen = _with_parameters(trace, chosen)
    for assigned in (with_updates, with_evaluation):
        chosen = replace(chosen, call_of=assigned(trace, chosen))
    return chosen


def _with_parameters(trace: Trace, evidence: Evidence) -> Evidence:
    """Add the sizes of parameters: of the program's arguments, by their names or else by use."""
    paths = [tuple(module.path.split(".")) for module in evidence.modules]
    arguments = trace.metadata.properties.get("arguments", ())
    used = (
        (evidence.of_origin(scope, frame), elements, size)
        for _, elements, size, scope, frame, updated in arguments
        if updated
    )
    sizes = parameter_sizes(arguments, paths) or sizes_by_use(
        (paths[module], elements, size) for module, elements, size in used if module >= 0
    )
    for module, path in zip(evidence.modules, paths, strict=True):
        if size := sizes.get(path):
            facts = {"parameters": size.elements, "parameter_bytes": size.bytes}
            module.facts = {**module.facts, **facts}
    return evidence


def _by_call(trace: Trace, call_of: Ids32) -> Ids32:
    """The module of each event from the calls around it, its forward event, and its launch."""
    return at_launch(trace, _backward(trace, inherit(trace.events["parent"], call_of)), caller_of)


def _backward(trace: Trace, module: Ids32) -> Ids32:
    """Modules of autograd's events, from those of their forward events."""
    events = trace.events
    forward = events["forward_event"]
    own = np.where((module < 0) & (forward >= 0), module[forward], module)
    engine = _engine_nodes(trace)
    own[engine] = _from_inside(events, engine, own)[engine]
    _inherit_from_previous(events, engine, own)
    return inherit(events["parent"], own)


def _engine_nodes(trace: Trace) -> Mask:
    """The outermost backward events: one for each node of the autograd graph."""
    events = trace.events
    operator = events.text("category").mask("cpu_op") & events.text("stage").mask("backward") & on_host(trace)
    return outermost(events["parent"], operator)


def _from_inside(events: Table, engine: Mask, own: Ids32) -> Ids32:
    """A node without a module takes the module of its first child that has one."""
    result = own.copy()
    child = np.flatnonzero((own >= 0) & (events["parent"] >= 0))[::-1]
    outer = events["parent"][child]
    wanted = engine[outer] & (own[outer] < 0)
    result[outer[wanted]] = own[child[wanted]]
    return result


def _inherit_from_previous(events: Table, engine: Mask, own: Ids32) -> None:
    """A node still without a module takes the module of the previous node in its thread."""
    nodes = np.flatnonzero(engine)
    nodes = nodes[np.argsort(events["track"][nodes], kind="stable")]
    lane = events["track"][nodes].astype(np.int64) * (2**32) + events["step"][nodes]
    known = np.where((own[nodes] >= 0) | (events["forward_event"][nodes] >= 0), np.arange(len(nodes)), -1)
    last = np.maximum.accumulate(known)
    usable = (last >= 0) & (lane[last] == lane)
    own[nodes[usable]] = own[nodes[last[usable]]]


# -- ranges and frames that name modules


def from_ranges(trace: Trace) -> Evidence | None:
    """Modules from the ranges of a capture, with facts from its model tree."""
    names = trace.events.text("name")
    calls = names.where(lambda name: name.startswith(MODULE_RANGE))
    if not calls.any() and not trace.metadata.properties.get("compiled"):
        return None
    modules = tree_modules(trace.metadata.model)
    paths = {_path_of(name) for name in names.take(calls) if name}
    if paths and not modules:
        paths.add("")  # the model, which no file describes
    number = _numbered(modules, paths, {})
    code = [
        number.get(_path_of(value), -1) if value.startswith(MODULE_RANGE) else -1 for value in names.values
    ]
    return Evidence("ranges", modules, np.array([*code, -1], np.int32)[names.codes])


def _path_of(name: str) -> str:
    return name[len(MODULE_RANGE) :].strip()


def _numbered(modules: list[Module], paths: set[str], classes: Mapping[str, str]) -> dict[str, int]:
    """The place of each module by its path; adds those that paths name, and those around them."""
    number = {module.path: place for place, module in enumerate(modules)}
    named = {part for path in paths for part in accumulate(path.split("."), "{}.{}".format)}
    for path in sorted(named - set(number)):
        above, _, name = path.rpartition(".")
        modules.append(Module(path, name, classes.get(path, ""), number.get(above, -1)))
        number[path] = len(modules) - 1
    return number


def from_frames(trace: Trace) -> Evidence | None:
    """Modules from `nn.Module: Class_3` frames, which number the instances of each class.

    The parent of an instance is the instance that encloses most of its calls. A call without an
    enclosing one, as when checkpointing repeats a module in backward, is the same instance.
    """
    events = trace.events
    names = events.text("name")
    frame = names.where(lambda name: name.startswith(MODULE_FRAME))
    frame &= events.text("category").mask("python")
    if not frame.any():
        return None
    call_of = np.where(frame, names.codes, -1).astype(np.int32)
    around = np.where(events["parent"] >= 0, inherit(events["parent"], call_of)[events["parent"]], -1)
    pairs = Counter(zip(call_of[frame].tolist(), around[frame].tolist(), strict=True))
    modules, number = _tree_of_instances(names.values, pairs)
    table = np.full(len(names.values) + 1, -1, np.int32)
    for code, index in number.items():
        table[code] = index
    return Evidence("nn_module", modules, table[call_of])


def _tree_of_instances(names: Any, pairs: Counter[tuple[int, int]]) -> tuple[list[Module], dict[int, int]]:
    """Modules from (instance, instance around it) counts, parents before children."""
    parent: dict[int, int] = {}
    above: dict[int, int] = {}  # of instances with a parent, one further out
    for (code, outer), _ in sorted(pairs.items(), key=lambda item: (item[0][1] < 0, -item[1])):
        if code not in parent and _outermost(outer, above) != code:  # parents must not form a cycle
            parent[code] = above[code] = outer
    modules: list[Module] = []
    number, depth = dict[int, int](), [0]  # of each module, then of none

    def unnumbered(code: int) -> int:
        return -1 if code in number else code

    for code in sorted(parent):
        for inner in chain_of(unnumbered(code), lambda inner: unnumbered(parent.get(inner, -1))):
            outer = number.get(parent[inner], -1)
            outer = modules[outer].parent if depth[outer] == _DEEPEST else outer
            name = names[inner][len(MODULE_FRAME) :]
            path = f"{modules[outer].path}.{name}" if outer >= 0 else name
            depth.insert(len(modules), depth[outer] + 1)
            number[inner] = len(modules)
            modules.append(Module(path, name, name.rpartition("_")[0] or name, outer))
    return modules, number


def _outermost(code: int, above: dict[int, int]) -> int:
    """The outermost instance around one, as known so far; paths to it become shorter."""
    while (outer := above.get(code, -1)) >= 0:
        if (further := above.get(outer, -1)) >= 0:
            above[code] = further
        code = outer
    return code


# -- scripted models

_HIERARCHY = re.compile(rb'"Module Hierarchy": ?"([^"]*)"')
_PART = re.compile(r"(?<!\w)(\w+)\([^)]{0,1000}\)::[^.]{0,1000}\.")


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
    inside &= trace.events.text("stage").mask(*FORWARD_STAGES)
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
    kinds, gradients = ("cpu_op", "annotation", "communication"), _of_gradients(trace)
    recorded = np.flatnonzero(trace.events.text("category").mask(*kinds) & on_host(trace))
    for rows in rows_by_key(trace.events["track"], recorded).values():  # of a thread, in order
        noted = _noted(trace, rows)
        readings = rows, rows[~gradients[rows]]
        pairs = (zip(of.tolist(), noted, strict=False) for of in readings)
        fits = [sum(bool(path) for row, path in pair if inside[row]) for pair in pairs]
        result |= dict(zip(readings[int(np.argmax(fits))].tolist(), noted, strict=False))
    return result


def _of_gradients(trace: Trace) -> Mask:
    """Nodes of the gradient graph, each inside of the engine's range for it."""
    events, names = trace.events, trace.events.text("name")
    engine = names.where(lambda name: name.startswith(ENGINE))
    result = np.zeros(len(events), np.bool_)
    for row in np.flatnonzero((events["parent"] >= 0) & engine[events["parent"]]).tolist():
        result[row] = names[int(events["parent"][row])] == ENGINE + (names[row] or "")
    return result


def _noted(trace: Trace, rows: Rows) -> list[tuple[str, ...]]:
    """The modules in the arguments of events, without the outermost."""
    noted = map(_HIERARCHY.search, trace.arguments.texts(trace.events["source"][rows]))
    return [tuple(_PART.findall(one[1].decode("utf-8", "replace"))) if one else () for one in noted]


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
