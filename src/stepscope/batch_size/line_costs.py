"""The cost of each source line: by itself, and including everything that it calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.annotate.attribution import Attribution
from stepscope.annotate.range_names import Line
from stepscope.batch_size.memory_owners import OwnedBytes
from stepscope.batch_size.step_costs import Cost
from stepscope.trace.trace import Trace

Json = dict[str, Any]


def line_costs(
    attribution: Attribution,
    costs: Iterable[Cost],
    kept: Iterable[OwnedBytes],
    trace: Trace,
    storages: Sequence[Json] = (),
) -> list[Json]:
    """Costs by line.

    Args:
        attribution: which stacks of lines there are.
        costs: the step's times.
        kept: the activations that forward keeps for backward.
        trace: names the modules.
        storages: parameters with the lines that made them.

    Returns:
        Rows `{"file", "line", "ms", "forward_ms", "backward_ms", "self_ms", "calls",
        "activations_bytes", "self_activations_bytes", "weights_bytes", "operators", "modules"}`,
        the longest first. `self_` is what the line's own calls of torch cost; the others include
        what functions called there cost. `operators` and `modules` list where the time goes.
    """
    return _Lines(attribution, trace).build(costs, kept, storages)


class _Lines:
    def __init__(self, attribution: Attribution, trace: Trace) -> None:
        self.attribution = attribution
        self.paths = [*trace["modules"].text("path")]
        self.rows: dict[Line, Json] = {}

    def build(
        self, costs: Iterable[Cost], kept: Iterable[OwnedBytes], storages: Iterable[Json]
    ) -> list[Json]:
        for cost in costs:
            if cost.lines >= 0:
                self._add_cost(cost)
        for one in kept:
            if one.lines >= 0:
                self._add_kept(one)
        for storage in storages:
            if storage["kind"] == "parameter":
                self._add_weights(storage)
        rows = sorted(self.rows.values(), key=lambda row: -row["ms"])
        return [_listed(row) for row in rows]

    def _add_cost(self, cost: Cost) -> None:
        stack = self.attribution.stacks[cost.lines]
        name = self.attribution.operators[cost.operator] if cost.operator >= 0 else "Python"
        module = self.paths[cost.module] if cost.module >= 0 else None
        for line in dict.fromkeys(stack):
            row = self._row(line)
            row["ms"] += cost.ms
            row["backward_ms" if cost.backward else "forward_ms"] += cost.ms
            _add(row["operators"], name, cost.ms)
            if module is not None:
                _add(row["modules"], module, cost.ms)
        self._row(stack[-1])["self_ms"] += cost.ms
        self._row(stack[-1])["calls"] += cost.calls

    def _add_kept(self, one: OwnedBytes) -> None:
        stack = self.attribution.stacks[one.lines]
        for line in dict.fromkeys(stack):
            self._row(line)["activations_bytes"] += one.bytes
        self._row(stack[-1])["self_activations_bytes"] += one.bytes

    def _add_weights(self, storage: Json) -> None:
        for file, number in {(file, number) for file, number in storage["lines"]}:
            self._row((file, number))["weights_bytes"] += storage["bytes"]

    def _row(self, line: Line) -> Json:
        if line not in self.rows:
            numbers = dict.fromkeys(
                ("ms", "forward_ms", "backward_ms", "self_ms", "calls",
                 "activations_bytes", "self_activations_bytes", "weights_bytes"), 0,
            )  # fmt: skip
            self.rows[line] = {"file": line[0], "line": line[1], **numbers,
                               "operators": {}, "modules": {}}  # fmt: skip
        return self.rows[line]


def _add(sums: dict[str, float], key: str, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def _listed(row: Json) -> Json:
    """The parts of a line as lists, the longest first."""
    return {
        **row,
        "operators": [{"name": name, "ms": ms} for name, ms in _longest(row["operators"])],
        "modules": [{"path": path, "ms": ms} for path, ms in _longest(row["modules"])],
    }


def _longest(sums: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(sums.items(), key=lambda pair: -pair[1])
