"""The model tree with its costs, repeated blocks folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.blocks import numbered_blocks
from stepscope.annotate.modules import module_costs
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MS = 1e-6
_LEAST_REPEATS = 3


@dataclass(frozen=True)
class Node:
    """A module, or `count` alike ones in a row; times are means a step, ms, of all together.

    `flops` are the operations of matrix products, convolutions and attention, a step; None where
    those of none are known. `spread_ms` is the shortest and the longest of the folded modules' own
    times; `path` is that of the first of them, `modules` are the ids of all, and `copies` each of
    them alone, childless.
    """

    name: str
    path: str
    kind: str
    count: int
    calls: float
    forward_cpu_ms: float
    forward_device_ms: float
    backward_cpu_ms: float
    backward_device_ms: float
    recompute_cpu_ms: float
    recompute_device_ms: float
    flops: float | None
    parameters: int | None
    file: str
    line: int | None
    call_file: str
    call_line: int | None
    spread_ms: tuple[float, float]
    modules: list[int]
    copies: list[Node]
    children: list[Node]

    @property
    def cpu_ms(self) -> float:
        """CPU time, forward and backward, ms a step."""
        return self.forward_cpu_ms + self.backward_cpu_ms + self.recompute_cpu_ms

    @property
    def device_ms(self) -> float:
        """Device time, forward and backward, ms a step."""
        return self.forward_device_ms + self.backward_device_ms + self.recompute_device_ms


def module_tree(
    trace: Trace,
    rank: int,
    chosen: NDArray[np.bool_],
    steps: int,
    flops: NDArray[np.float64],
) -> list[Node]:
    """The model tree of one rank with its costs over chosen events.

    Children of one class that are numbered (`h.0 … h.11`, `Bottleneck_3 …`) and stand in a row fold
    into one node, and so do theirs, name by name.

    Args:
        trace: an annotated trace.
        rank: whose modules.
        chosen: bool, shape (events,), the events of the chosen steps.
        steps: how many steps these are; times are divided by it.
        flops: operations a step of each module with those inside it, shape (modules,), or nan.

    Returns:
        The outermost modules. Calls are means over all recorded steps, as the table counts them.
    """
    modules = trace["modules"]
    costs = module_costs(trace, modules["parent"], chosen)
    recorded = int((trace["steps"]["rank"] == rank).sum())
    builder = _Builder(modules, costs, steps, recorded, flops)
    roots = np.flatnonzero((modules["parent"] < 0) & (modules["rank"] == rank)).tolist()
    return builder.level([roots])


class _Builder:
    def __init__(
        self,
        modules: Table,
        costs: dict[str, NDArray[np.int64]],
        steps: int,
        recorded: int,
        flops: NDArray[np.float64],
    ) -> None:
        self.modules, self.recorded, self.flops = modules, recorded, flops
        self.costs = {name.replace("_ns", "_ms"): ns * _MS / steps for name, ns in costs.items()}
        self.total = sum(self.costs.values(), np.zeros(len(modules)))
        self.names, self.kinds = list(modules.text("name")), list(modules.text("class"))
        self.blocks = numbered_blocks(modules)
        self.children: list[list[int]] = [[] for _ in range(len(modules))]
        for index, parent in enumerate(modules["parent"].tolist()):
            if parent >= 0:
                self.children[parent].append(index)

    def level(self, families: Iterable[list[int]]) -> list[Node]:
        """Nodes for the children of some alike parents: the same child of each makes one node."""
        matched: dict[tuple[str, int], list[int]] = {}
        for family in families:
            seen: dict[str, int] = {}
            for index in family:
                key = self._key(index)
                seen[key] = seen.get(key, 0) + 1
                matched.setdefault((key, seen[key]), []).append(index)
        return [self._node(group) for group in self._folded(list(matched.values()))]

    def _key(self, index: int) -> str:
        """What makes it the same child under another parent: its name, or its class if numbered."""
        name, kind = self.names[index] or "", self.kinds[index] or ""
        return kind if name.startswith(f"{kind}_") else name

    def _folded(self, groups: list[list[int]]) -> list[list[list[int]]]:
        """Runs of numbered groups of one class; others stay alone."""
        runs: list[list[list[int]]] = []
        for group in groups:
            if runs and self._alike(runs[-1][-1], group):
                runs[-1].append(group)
            else:
                runs.append([group])
        split = (run if len(run) < _LEAST_REPEATS else [list(chain(*run))] for run in runs)
        return [[group] for part in split for group in part]

    def _alike(self, one: list[int], other: list[int]) -> bool:
        """Whether two children are numbered copies of one block."""
        return bool(self.blocks[one[0]] == self.blocks[other[0]] >= 0)

    def _node(self, groups: list[list[int]]) -> Node:
        indices = list(chain(*groups))
        node = self._of(indices)
        copies = [self._of([index]) for index in indices] if len(indices) > 1 else []
        children = self.level(self.children[index] for index in indices)
        return replace(node, copies=copies, children=children)

    def _of(self, indices: list[int]) -> Node:
        """The node of some modules together, without what is in them."""
        first, last = indices[0], indices[-1]
        each = self.total[indices]
        parameters = self.modules["parameters"][indices]
        flops = float(self.flops[indices].sum())
        name = self.names[first] or ""
        if len(indices) > 1 and self.names[last] != name:
            name = f"{name} … {(self.names[last] or '').rpartition('_')[2]}"
        return Node(
            name=name,
            path=self.modules.text("path")[first] or "",
            kind=self.kinds[first] or "",
            count=len(indices),
            calls=float(self.modules["calls"][indices].sum() / self.recorded),
            **{name: float(ms[indices].sum()) for name, ms in self.costs.items()},
            flops=None if np.isnan(flops) else flops,
            parameters=int(parameters.sum()) if (parameters >= 0).all() else None,
            file=self.modules.text("file")[first] or "",
            line=_known(int(self.modules["line"][first])),
            call_file=self.modules.text("call_file")[first] or "",
            call_line=_known(int(self.modules["call_line"][first])),
            spread_ms=(float(each.min()), float(each.max())),
            modules=indices,
            copies=[],
            children=[],
        )


def _known(value: int) -> int | None:
    return value if value >= 0 else None
