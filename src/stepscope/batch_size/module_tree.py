"""Costs and memory as a tree: the step, its modules as the model nests them, their operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from stepscope.annotate.attribution import Attribution
from stepscope.batch_size.peak_memory import OwnedBytes
from stepscope.batch_size.step_costs import Cost
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

Json = dict[str, Any]
_SUMS = ("ms", "forward_ms", "backward_ms", "cpu_ms", "bytes", "weights_bytes", "buffers_bytes",
         "gradients_bytes", "optimizer_state_bytes", "activations_bytes", "inputs_bytes",
         "temporaries_bytes", "untracked_bytes")  # fmt: skip


def module_tree(
    trace: Trace,
    attribution: Attribution,
    costs: Iterable[Cost],
    held: Iterable[OwnedBytes],
    kept: Iterable[OwnedBytes],
    step_ms: float,
) -> Json:
    """Build the tree.

    Args:
        trace: names the modules.
        attribution: names operators and lines.
        costs: the step's times.
        held: the bytes at the peak.
        kept: the activations that forward keeps for backward, whether or not they are there at
            the peak.
        step_ms: the length of the step.

    Returns:
        A node `{"name", "kind", "path", "ms", "self_ms", "forward_ms", "backward_ms", "bytes",
        "weights_bytes", "activations_bytes", …, "children"}`; `kind` is step, module, stage or
        operator. A node's numbers include its children's, but for `self_ms` and `self_bytes`.
        The step's children add up to the step; what no module has is a child of kind stage.
    """
    return _Tree(trace, attribution).build(costs, held, kept, step_ms)


class _Tree:
    def __init__(self, trace: Trace, attribution: Attribution) -> None:
        self.attribution = attribution
        self.modules = [*trace["modules"].rows()]
        self.nodes = [_module_node(row, len(trace["steps"])) for row in self.modules]
        self.stages: dict[str, Json] = {}
        self.operators: dict[tuple[int, int, int, int], Json] = {}
        self.root = _node("step", "step")

    def build(
        self,
        costs: Iterable[Cost],
        held: Iterable[OwnedBytes],
        kept: Iterable[OwnedBytes],
        step_ms: float,
    ) -> Json:
        for cost in costs:
            self._add_cost(cost)
        for one in held:
            owner = self._holder(one)
            owner["bytes"] += one.bytes
            if one.kind != "activations":
                owner[f"{one.kind}_bytes"] += one.bytes
        for one in kept:
            self._holder(one)["activations_bytes"] += one.bytes
        self._hang_up()
        _sum_up(self.root)
        left = step_ms - self.root["ms"]
        if left > 1e-6 * step_ms:
            # On a device: the time in which it does nothing of what is known.
            idle = {**_node("idle", "stage"), "ms": left, "self_ms": left, "self_bytes": 0}
            self.root["children"].append(idle)
            self.root["ms"] = step_ms
        _sort(self.root)
        return self.root

    def _add_cost(self, cost: Cost) -> None:
        node = self._operator(cost.module, cost.stage, cost.operator, cost.lines)
        node["ms"] += cost.ms
        node["cpu_ms"] += cost.cpu_ms
        node["backward_ms" if cost.backward else "forward_ms"] += cost.ms
        node["calls"] += cost.calls

    def _holder(self, one: OwnedBytes) -> Json:
        if one.operator < 0:
            return self._owner(one.module, one.stage)
        return self._operator(one.module, one.stage, one.operator, one.lines)

    def _owner(self, module: int, stage: int) -> Json:
        if module >= 0:
            return self.nodes[module]
        name = STAGES[stage] if stage >= 0 else "untracked"
        return self.stages.setdefault(name, _node(name, "stage"))

    def _operator(self, module: int, stage: int, operator: int, lines: int) -> Json:
        stage = -1 if module >= 0 else stage
        lines = lines if operator >= 0 else -1
        key = (module, stage, operator, lines)
        if key not in self.operators:
            name = self.attribution.operators[operator] if operator >= 0 else "Python"
            stack = self.attribution.stacks[lines] if lines >= 0 else ()
            node = _node(name, "operator")
            file, line = stack[-1] if stack else (None, None)
            node |= {"file": file, "line": line}
            self.operators[key] = node
            self._owner(module, stage)["children"].append(node)
        return self.operators[key]

    def _hang_up(self) -> None:
        for row, node in zip(self.modules, self.nodes, strict=True):
            parent = row["parent"]
            above = self.root if parent is None or parent < 0 else self.nodes[parent]
            above["children"].append(node)
        self.root["children"] += self.stages.values()


def _module_node(row: Json, steps: int) -> Json:
    node = _node(row["name"] or row["class"], "module")
    return node | {
        "path": row["path"],
        "class": row["class"],
        "calls": row["calls"] // max(1, steps),
        "file": row["call_file"] or None,
        "line": row["call_line"],
        "defined_file": row["file"] or None,
        "defined_line": row["line"],
        "parameters": row["parameters"],
    }


def _node(name: str, kind: str) -> Json:
    sums: Json = dict.fromkeys(_SUMS, 0)
    return {"name": name, "kind": kind, "calls": 0, **sums, "children": []}


def _sum_up(node: Json) -> None:
    """Make a node's numbers include its children's; `self_` is what is directly in it: operators of
    its own count as its own."""
    for child in node["children"]:
        _sum_up(child)
    own = [child for child in node["children"] if child["kind"] == "operator"]
    node["self_ms"] = node["ms"] + sum(child["ms"] for child in own)
    node["self_bytes"] = node["bytes"] + sum(child["bytes"] for child in own)
    totals: dict[str, float] = defaultdict(float)
    for child in node["children"]:
        for key in _SUMS:
            totals[key] += child[key]
    for key, value in totals.items():
        node[key] += value


def _sort(node: Json) -> None:
    node["children"] = sorted(
        (one for one in node["children"] if any(one[key] > 0 for key in _SUMS)),
        key=lambda one: -one["ms"],
    )
    for child in node["children"]:
        _sort(child)
