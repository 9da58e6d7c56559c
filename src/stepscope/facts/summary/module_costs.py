"""The module tree with its costs; repeated blocks are folded."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stepscope.base.arrays import Ids, Ids32, Mask, Rows
from stepscope.facts.annotate.links.launches import at_launch
from stepscope.facts.annotate.modules.costs import module_costs, numbered_blocks
from stepscope.facts.annotate.stages.optimizers import optimizer_calls
from stepscope.facts.summary.facts import ModuleNode, Update, UpdatedModel, UpdateStage
from stepscope.facts.summary.kernels import ModuleWork
from stepscope.facts.summary.selected_steps import MS, SelectedSteps
from stepscope.trace.row_order import begins_run, last_begun, rows_by_key
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_LEAST_REPEATS = 3  # equal modules in a row that fold into one node; two are as quickly read


def module_tree(trace: Trace, rank: int, chosen: Mask, steps: int, work: ModuleWork) -> list[ModuleNode]:
    """The module tree of one rank with its costs over chosen events: the outermost modules that run.

    Consecutive numbered children of one class (`h.0 … h.11`, `Bottleneck_3 …`) fold into one node, and so do
    their children, name by name. Times are divided by the number of steps whose events are `chosen`, shape
    (events,). Calls are means over all recorded steps, as the table counts them.
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


# -- the updates of a loop with several optimizers: what leads to a step of each

_MOST_MODELS = 4  # that are listed below an update
_MOST_SPLIT = 64  # updates that are split into models, the longest: each split reads all events
_LEAST_SHARE = 0.01  # of an update's time, for a model to be listed


def updates_of(selected: SelectedSteps) -> list[Update]:
    """The updates, in order of their first step; none if the loop has one optimizer."""
    runs = selected.rows_of(selected.trace["stages"])
    runs = runs.take(np.argsort(runs["start_ns"], kind="stable"))
    rows = rows_by_key(runs.text("optimizer").codes)
    order = sorted((code for code in rows if code >= 0), key=lambda code: int(rows[code][0]))
    if len(order) < 2:
        return []
    run_of = _run_of_events(selected, runs)
    models, counts, longest = _models(selected), _counts(selected, runs), _longest(runs)
    return [
        _update(selected, runs, rows[code], run_of, models if code in longest else models[:0], counts)
        for code in order
    ]


def _longest(runs: Table) -> set[int]:
    """The codes of the optimizers with the most time."""
    chosen = runs.take(runs["optimizer"] >= 0)
    spent = np.bincount(chosen.text("optimizer").codes, chosen["cpu_ns"] + chosen["device_ns"])
    return {*np.argsort(-spent, kind="stable")[:_MOST_SPLIT].tolist()}


def _update(
    selected: SelectedSteps, runs: Table, rows: Rows, run_of: Rows, models: Ids32, counts: Counter[str]
) -> Update:
    """The optimizer whose runs are `rows`."""
    of_stage, optimizer = runs["stage"][rows], runs.text("optimizer")[rows[0]] or ""
    spent = [
        UpdateStage(
            STAGES[stage],
            float(runs["cpu_ns"][rows[of_stage == stage]].sum()) * MS / selected.count,
            float(runs["device_ns"][rows[of_stage == stage]].sum()) * MS / selected.count,
        )
        for stage in np.unique(of_stage).tolist()
    ]
    return Update(
        optimizer=optimizer,
        count=counts[optimizer] / selected.count,
        cpu_ms=sum(stage.cpu_ms for stage in spent),
        device_ms=sum(stage.device_ms for stage in spent),
        stages=spent,
        models=_models_of(selected, run_of, rows, models),
    )


def _counts(selected: SelectedSteps, runs: Table) -> Counter[str]:
    """How often each name steps; optimizers that share their passes, how often they do."""
    calls = optimizer_calls(selected.trace, selected.chosen_events)
    steps = Counter(calls.names[name] for name in calls.name.tolist())
    known = runs.text("optimizer").take(np.flatnonzero(runs["optimizer"] >= 0))
    passes = Counter(known.values[code] for code in known.codes[begins_run(known.codes)].tolist())
    return Counter({name: steps.get(name, count) for name, count in passes.items()})


def _run_of_events(selected: SelectedSteps, runs: Table) -> Rows:
    """The row of `runs` in which each event of the steps begins or was launched, -1 for none."""
    moment = at_launch(selected.trace, selected.trace.events["start_ns"])
    return np.where(selected.chosen_events, last_begun(runs["start_ns"], moment), -1)


def _models(selected: SelectedSteps) -> Ids32:
    """The modules that an update is split into: the models, or the parts of the only one."""
    modules = selected.trace["modules"]
    roots = np.flatnonzero(models_that_run(modules, selected.rank))
    if len(roots) == 1:
        roots = np.flatnonzero(modules["parent"] == roots[0])
    return roots.astype(np.int32)


def _models_of(selected: SelectedSteps, run_of: Rows, rows: Rows, models: Ids32) -> list[UpdatedModel]:
    if not len(models):
        return []
    modules = selected.trace["modules"]
    costs = module_costs(selected.trace, modules["parent"], np.isin(run_of, rows))
    times = {name.replace("_ns", "_ms"): ns * MS / selected.count for name, ns in costs.items()}
    total: Ids = sum(costs.values(), np.zeros(len(modules), np.int64))
    ranked = sorted(models.tolist(), key=lambda model: -total[model])[:_MOST_MODELS]
    least = _LEAST_SHARE * total[models].sum()
    return [
        UpdatedModel(
            modules.text("path")[model] or "",
            **{
                f"{phase}_{side}_ms": float(times[f"{phase}_{side}_ms"][model])
                for phase in ("forward", "backward")
                for side in ("cpu", "device")
            },
        )
        for model in ranked
        if total[model] > least
    ]
