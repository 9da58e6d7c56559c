"""The module tree with its costs; repeated blocks are folded."""

from collections.abc import Iterable
from itertools import chain

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.base.arrays import Mask
from stepscope.facts.annotate.modules.costs import module_costs, numbered_blocks
from stepscope.facts.summary.facts import ModuleNode
from stepscope.facts.summary.kernels import ModuleWork
from stepscope.facts.summary.selected_steps import MS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_LEAST_REPEATS = 3  # equal modules in a row that fold into one node; two are as quickly read


def module_tree(trace: Trace, rank: int, chosen: Mask, steps: int, work: ModuleWork) -> list[ModuleNode]:
    """The module tree of one rank with its costs over chosen events.

    Consecutive numbered children of one class (`h.0 … h.11`, `Bottleneck_3 …`) fold into one node,
    and so do their children, name by name.

    Args:
        chosen: bool, shape (events,), the events of the chosen steps.
        steps: how many steps these are; times are divided by it.

    Returns:
        The outermost modules that run. Calls are means over all recorded steps, as the table counts
        them.
    """
    modules = trace["modules"]
    costs = module_costs(trace, modules["parent"], chosen)
    recorded = int((trace["steps"]["rank"] == rank).sum())
    builder = _Builder(modules, costs, steps, recorded, work)
    return builder.level([np.flatnonzero(models_that_run(modules, rank)).tolist()])


def models_that_run(modules: Table, rank: int) -> Mask:
    """The outermost modules that work in the recorded steps; all of them if none does.

    A program may hold others: a copy that another object trains, a model for evaluation only.
    """
    models = (modules["parent"] < 0) & (modules["rank"] == rank)
    phases = ("forward", "backward", "recompute")
    costs = [modules[f"{phase}_{where}_ns"] for phase in phases for where in ("cpu", "device")]
    running: Mask = models & (np.sum(costs, axis=0) > 0)
    return running if running.any() else models


class _Builder:
    def __init__(
        self, modules: Table, costs: dict[str, NDArray[np.int64]], steps: int, recorded: int, work: ModuleWork
    ) -> None:
        self.modules, self.recorded, self.work = modules, recorded, work
        self.costs = {name.replace("_ns", "_ms"): ns * MS / steps for name, ns in costs.items()}
        self.total = sum(self.costs.values(), np.zeros(len(modules)))
        self.names, self.kinds = list(modules.text("name")), list(modules.text("class"))
        self.blocks = numbered_blocks(modules)
        self.children: list[list[int]] = [[] for _ in range(len(modules))]
        for index, parent in enumerate(modules["parent"].tolist()):
            if parent >= 0:
                self.children[parent].append(index)

    def level(self, families: Iterable[list[int]]) -> list[ModuleNode]:
        """Nodes for the children of equal parents: the same child of each makes one node."""
        found: list[tuple[list[int], int]] = []  # modules of a node, and the place of its parent
        pending = [(list(families), -1)]
        while pending:
            below, parent = pending.pop()
            for indices in self._groups(below):
                pending.append(([self.children[index] for index in indices], len(found)))
                found.append((indices, parent))
        children: list[list[ModuleNode]] = [[] for _ in found]
        roots: list[ModuleNode] = []
        for place in reversed(range(len(found))):  # a node comes after its parent
            indices, parent = found[place]
            copies = [self._of([index]) for index in indices] if len(indices) > 1 else []
            node = replace(self._of(indices), copies=copies, children=children[place][::-1])
            (children[parent] if parent >= 0 else roots).append(node)
        return roots[::-1]

    def _groups(self, families: Iterable[list[int]]) -> list[list[int]]:
        """The modules that make one node each, of the children of equal parents."""
        matched: dict[tuple[str, int], list[int]] = {}
        for family in families:
            seen: dict[str, int] = {}
            for index in family:
                key = self._key(index)
                seen[key] = seen.get(key, 0) + 1
                matched.setdefault((key, seen[key]), []).append(index)
        return [list(chain(*groups)) for groups in self._folded(list(matched.values()))]

    def _key(self, index: int) -> str:
        """Identity of a child across equal parents: its name, or its class if numbered."""
        name, kind = self.names[index] or "", self.kinds[index] or ""
        return kind if name.startswith(f"{kind}_") else name

    def _folded(self, groups: list[list[int]]) -> list[list[list[int]]]:
        runs: list[list[list[int]]] = []
        for group in groups:
            if runs and self.blocks[runs[-1][-1][0]] == self.blocks[group[0]] >= 0:
                runs[-1].append(group)
            else:
                runs.append([group])
        split = (run if len(run) < _LEAST_REPEATS else [list(chain(*run))] for run in runs)
        return [[group] for run in split for group in run]

    def _of(self, indices: list[int]) -> ModuleNode:
        """One node for several modules, without their children."""
        first, last = indices[0], indices[-1]
        each = self.total[indices]
        parameters = self.modules["parameters"][indices]
        flops, all_flops, all_bytes = (float(column[indices].sum()) for column in self.work)
        name = self.names[first] or ""
        if len(indices) > 1 and self.names[last] != name:
            name = f"{name} … {(self.names[last] or '').rpartition('_')[2]}"
        return ModuleNode(
            name=name,
            path=self.modules.text("path")[first] or "",
            kind=self.kinds[first] or "",
            count=len(indices),
            calls=float(self.modules["calls"][indices].sum() / self.recorded),
            **{name: float(ms[indices].sum()) for name, ms in self.costs.items()},
            flops=None if np.isnan(flops) else flops,
            intensity=all_flops / all_bytes if all_bytes else None,
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
