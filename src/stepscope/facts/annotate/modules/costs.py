"""What each module costs, and which modules are copies of one block."""

from typing import Any

import numpy as np

from stepscope.base.arrays import Array, Ids, Ids32, Mask, Rows, Times
from stepscope.facts.annotate.links.launches import on_host
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.trace.intervals import grouped_union
from stepscope.trace.nesting import depths
from stepscope.trace.schema import COMPUTING, FORWARD_STAGES, MODULES, OUTSIDE_STAGES
from stepscope.trace.shares import Shares
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def module_table(trace: Trace, evidence: Evidence) -> Table:
    """The table `modules` of a trace whose events have modules."""
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
    """The cost columns of the table `modules`, such as `forward_cpu_ns`, shape (modules,), ns.

    Args:
        parent: as in the modules table, shape (modules,).
        chosen: the events that count, shape (events,); by default every event in a step.
    """
    costs = {}
    for phase, rows in _phases(trace).items():
        rows = rows if chosen is None else rows & chosen
        costs[f"{phase}_cpu_ns"] = _cpu(trace, rows, parent)
        costs[f"{phase}_device_ns"] = _device(trace, rows, parent)
    return costs


def _facts(modules: list[Module]) -> dict[str, Any]:
    facts = [module.facts for module in modules]
    numbers = {
        key: [value if isinstance(value := fact.get(key), int) and value >= 0 else -1 for fact in facts]
        for key in ("parameters", "parameter_bytes", "line", "call_line")
    }
    texts = {key: [str(fact.get(key) or "") for fact in facts] for key in ("file", "call_file")}
    return {**numbers, **texts}


def _calls(trace: Trace, evidence: Evidence) -> Times:
    if evidence.calls is not None:
        return evidence.calls
    forward = (evidence.call_of >= 0) & (trace.events["recompute"] == 0)
    forward &= ~trace.events.text("stage").mask(*OUTSIDE_STAGES)
    return np.bincount(evidence.call_of[forward], minlength=len(evidence.modules))


def _phases(trace: Trace) -> dict[str, Mask]:
    events, stage = trace.events, trace.events.text("stage")
    inside = (events["module"] >= 0) & (events["step"] >= 0)
    again = inside & (events["recompute"] == 1)
    return {
        "forward": inside & ~again & stage.mask(*FORWARD_STAGES),
        "backward": inside & ~again & stage.mask("backward"),
        "recompute": again,
        "outside": inside & ~again & stage.mask(*OUTSIDE_STAGES),
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
    computes = trace.events.text("category").mask(*COMPUTING) & ~on_host(trace)
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
    table = trace["module_shares"]
    return Shares.of(table["event"].astype(np.int64), table["module"].astype(np.int64), table["share"])


def subtree_totals(own: Array, parent: Ids32) -> Array:
    """Each value, or row of values, plus those of all descendants."""
    total, depth = own.copy(), depths(parent)
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


# -- repeated blocks


def numbered_blocks(modules: Table) -> Ids:
    """A code shared by the copies of one block, -1 for all other modules.

    A block has children and is named by a number (`h.3`) or by its class and a number
    (`Bottleneck_3`). Copies have the same class and size, and so do their children, in order. The
    table has parents before children.
    """
    parent = modules["parent"].tolist()
    inside: list[list[int]] = [[] for _ in parent]
    shape = [0] * len(parent)
    codes: dict[object, int] = {}
    looks = list(zip(modules.text("class"), modules["parameters"].tolist(), strict=True))
    for module in range(len(parent) - 1, -1, -1):
        key = (looks[module], tuple(reversed(inside[module])))
        shape[module] = codes.setdefault(key, len(codes))
        if parent[module] >= 0:
            inside[parent[module]].append(shape[module])
    named = zip(modules.text("name"), modules.text("class"), strict=True)
    numbered = [(name or "").removeprefix(f"{(kind or '')}_").isdigit() for name, kind in named]
    block = np.array(numbered, bool) & np.array([bool(children) for children in inside], bool)
    return np.where(block, np.array(shape, np.int64), -1)
