"""Attribute events to modules, forward and backward, and compute the cost of each module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.links.launches import launch_of
from stepscope.annotate.modules.argument_names import parameter_sizes, sizes_by_use
from stepscope.annotate.modules.evaluated_modules import with_evaluation
from stepscope.annotate.modules.inductor_graphs import compiled_operators
from stepscope.annotate.modules.matching.matching import from_tree
from stepscope.annotate.modules.module_evidence import (
    Evidence,
    Module,
    from_frames,
    from_ranges,
    from_scopes,
)
from stepscope.annotate.modules.scripted_modules import scripted_operators
from stepscope.annotate.modules.traced_modules import from_functions, from_stacks
from stepscope.annotate.modules.updated_modules import with_updates
from stepscope.arrays import Array, Ids32, Mask, Rows, Times
from stepscope.trace.intervals import grouped_union
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import COMPUTING, FORWARD_STAGES, MODULES, OUTSIDE_STAGES, STAGES
from stepscope.trace.shares import NO_SHARES, Shares
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_BACKWARD = STAGES.index("backward")
_OUTSIDE = [STAGES.index(stage) for stage in OUTSIDE_STAGES]  # a validation, a rollout
_FORWARD = [STAGES.index(stage) for stage in FORWARD_STAGES]


def attribute_modules(trace: Trace) -> Trace:
    """Fill the table `modules`, and the module of every event.

    Forward events belong to the innermost call around them, backward events to the module of their
    forward event. What autograd does right after a gradient (accumulation, copies of the reducer)
    belongs to the module of that gradient. Device work follows its launch. A compiled event belongs
    to the module of its scope, or of the stack in which it was traced; one of the optimizer to that
    whose parameters it updates.
    """
    evidence = from_ranges(trace) or from_frames(trace) or _of_compiled(trace) or from_tree(trace)
    if evidence is None:
        return trace
    known, calls = evidence.call_of, np.zeros(len(evidence.modules), np.int64)
    if scripted := scripted_operators(trace, evidence):
        known = np.where(scripted.module >= 0, scripted.module, known)
        calls = calls + scripted.calls
    if compiled := compiled_operators(trace, evidence):
        known = np.where(compiled.module >= 0, compiled.module, known)
        calls = calls + compiled.calls
        trace = trace.with_table(compiled.shares).with_warnings(compiled.warnings())
    module = known if evidence.own else _by_call(trace, known)
    trace = trace.with_events(module=module)
    table = _table(trace, evidence)
    return trace.with_table(table.with_columns(calls=table["calls"] + calls))


def _of_compiled(trace: Trace) -> Evidence | None:
    """Modules of compiled operations by scopes or by stacks, whichever tells more of them apart.

    Of equal ones, whichever shows more of them inside others: the scopes of Equinox name only the
    classes of its layers. Functions count only where there are neither scopes nor classes.
    """
    found = [evidence for evidence in (from_scopes(trace), from_stacks(trace)) if evidence]
    chosen = max(found, key=_distinct_and_nested, default=None)
    chosen = chosen or from_functions(trace)
    if chosen is None:
        return None
    chosen = _with_parameters(trace, chosen)
    for assigned in (with_updates, with_evaluation):
        chosen = replace(chosen, call_of=assigned(trace, chosen))
    return chosen


def _distinct_and_nested(evidence: Evidence) -> tuple[int, int]:
    nested = sum(module.parent >= 0 for module in evidence.modules)
    return len(evidence.modules), nested


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
    module = _backward(trace, inherit(trace.events["parent"], call_of))
    caller = launch_of(trace)
    return np.where(caller >= 0, module[caller], module).astype(np.int32)


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
    backward = events["stage"] == _BACKWARD
    operator = events.text("category").mask("cpu_op") & backward & on_host(trace)
    around = inherit(events["parent"], np.where(operator, 1, -1))
    inside = (events["parent"] >= 0) & (around[events["parent"]] > 0)
    outermost: Mask = operator & ~inside
    return outermost


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
    known = np.where(
        (own[nodes] >= 0) | (events["forward_event"][nodes] >= 0), np.arange(len(nodes)), -1
    )
    last = np.maximum.accumulate(known)
    usable = (last >= 0) & (lane[last] == lane)
    own[nodes[usable]] = own[nodes[last[usable]]]


# -- what each module costs


def _table(trace: Trace, evidence: Evidence) -> Table:
    modules = evidence.modules
    parent = np.array([module.parent for module in modules], np.int32)
    columns: dict[str, Any] = {
        "parent": parent,
        "rank": np.full(len(modules), trace.metadata.ranks[0]),
        "path": [module.path for module in modules],
        "name": [module.name for module in modules],
        "class": [module.kind.rpartition(".")[2] for module in modules],
        "evidence": Text.constant(evidence.how, len(modules)),
        "calls": _calls(trace, evidence),
        **_facts(modules),
    }
    return Table(MODULES, {**columns, **module_costs(trace, parent)})


def module_costs(trace: Trace, parent: Ids32, chosen: Mask | None = None) -> dict[str, Times]:
    """The cost columns of the table `modules`, for all or for chosen events.

    Args:
        trace: a trace whose events have modules.
        parent: int32, shape (modules,), as in the modules table.
        chosen: bool, shape (events,); by default every event in a step.

    Returns:
        Columns as `forward_cpu_ns`, int64, shape (modules,), ns.
    """
    costs = {}
    for phase, rows in _phases(trace).items():
        rows = rows if chosen is None else rows & chosen
        costs[f"{phase}_cpu_ns"] = _cpu(trace, rows, parent)
        costs[f"{phase}_device_ns"] = _device(trace, rows, parent)
    return costs


def _facts(modules: list[Module]) -> dict[str, Any]:
    """Facts from the model tree for each module."""
    facts = [module.facts for module in modules]
    numbers = {
        key: [_number(fact.get(key)) for fact in facts]
        for key in ("parameters", "parameter_bytes", "line", "call_line")
    }
    texts = {key: [str(fact.get(key) or "") for fact in facts] for key in ("file", "call_file")}
    return {**numbers, **texts}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else -1


def _calls(trace: Trace, evidence: Evidence) -> Times:
    if evidence.calls is not None:
        return evidence.calls
    forward = (evidence.call_of >= 0) & (trace.events["recompute"] == 0)
    forward &= ~np.isin(trace.events["stage"], _OUTSIDE)
    return np.bincount(evidence.call_of[forward], minlength=len(evidence.modules))


def _phases(trace: Trace) -> dict[str, Mask]:
    events = trace.events
    inside = (events["module"] >= 0) & (events["step"] >= 0)
    again = inside & (events["recompute"] == 1)
    return {
        "forward": inside & ~again & np.isin(events["stage"], _FORWARD),
        "backward": inside & ~again & (events["stage"] == _BACKWARD),
        "recompute": again,
        "outside": inside & ~again & np.isin(events["stage"], _OUTSIDE),
    }


def _cpu(trace: Trace, rows: Mask, parent: Ids32) -> Times:
    """CPU time by module, children included; self times never overlap on one thread."""
    events, shares = trace.events, _shares(trace)
    on_cpu = np.flatnonzero(rows & on_host(trace))
    owner, divided, part = shares.divide(on_cpu, events["self_ns"][on_cpu])
    whole = on_cpu[np.bincount(owner, minlength=len(on_cpu)) == 0]
    own = np.bincount(events["module"][whole], events["self_ns"][whole], len(parent))
    own += np.bincount(divided[divided >= 0], part[divided >= 0], len(parent))
    return subtree_totals(own.astype(np.int64), parent)


def _device(trace: Trace, rows: Mask, parent: Ids32) -> Times:
    """Device busy time by module, children included, as a union of intervals.

    Collectives are left out: they belong to a bucket of many modules, not to the last of them.
    """
    events = trace.events
    computes = events.text("category").mask(*COMPUTING) & ~on_host(trace)
    start, end, module = _intervals(trace, np.flatnonzero(rows & computes))
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        own = np.bincount(module, end - start, len(parent))  # nothing overlaps: sums are unions
        return subtree_totals(own.astype(np.int64), parent)
    group, event = _with_ancestors(module, parent)
    return grouped_union(group, start[event], end[event], len(parent))


def _intervals(trace: Trace, work: Rows) -> tuple[Times, Times, Ids32]:
    """Start, end and module of events, in order; of a divided one an interval for each part."""
    events = trace.events
    start, size, module = (events[name][work] for name in ("start_ns", "duration_ns", "module"))
    owner, divided, part = _shares(trace).divide(work, size)
    if not len(owner):
        return start, start + size, module
    before = np.cumsum(part) - part
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    before -= np.repeat(before[first], np.diff(np.append(first, len(owner))))
    whole = np.bincount(owner, minlength=len(work)) == 0
    begins = np.concatenate([start[whole], start[owner] + before])
    ends = begins + np.concatenate([size[whole], part])
    order = np.argsort(begins, kind="stable")
    of_part = np.concatenate([module[whole], divided]).astype(np.int32)
    order = order[of_part[order] >= 0]
    return begins[order], ends[order], of_part[order]


def _shares(trace: Trace) -> Shares:
    """The modules that events divide among."""
    table = trace["module_shares"]
    if not len(table):
        return NO_SHARES
    event = table["event"].astype(np.int64)
    first = np.flatnonzero(np.diff(event, prepend=-1))
    until = np.cumsum(table["share"])
    until -= np.repeat(until[first] - table["share"][first], np.diff(np.append(first, len(event))))
    until[np.append(first[1:] - 1, len(event) - 1)] = 1.0
    return Shares(event, table["module"].astype(np.int64), until)


def subtree_totals(own: Array, parent: Ids32) -> Array:
    """Each value, or row of values, plus those of all descendants."""
    total, depth, above = own.copy(), np.zeros(len(parent), np.int64), parent
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    for level in range(int(depth.max(initial=0)), 0, -1):
        rows = np.flatnonzero(depth == level)[::-1]
        np.add.at(total, parent[rows], total[rows])
    return total


def _with_ancestors(module: Ids32, parent: Ids32) -> tuple[Ids32, Rows]:
    """Pairs (module or an ancestor, index of the event) for every event."""
    groups, events = [module], [np.arange(len(module))]
    while len(above := parent[groups[-1]]) and (above >= 0).any():
        keep = above >= 0
        groups.append(above[keep])
        events.append(events[-1][keep])
    return np.concatenate(groups), np.concatenate(events)
