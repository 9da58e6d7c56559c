"""The updates of a loop with several optimizers: what leads to a step of each."""

from collections import Counter

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask, Rows
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.facts.annotate.modules.costs import module_costs
from stepscope.facts.annotate.stages.optimizers import optimizer_calls
from stepscope.facts.summary.facts import Update, UpdatedModel, UpdateStage
from stepscope.facts.summary.module_costs import models_that_run
from stepscope.facts.summary.selected_steps import MS, SelectedSteps
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table

_MOST_MODELS = 4  # that are listed below an update
_MOST_SPLIT = 64  # updates that are split into models, the longest: each split reads all events
_LEAST_SHARE = 0.01  # of an update's time, for a model to be listed
_NONE = -1


def updates_of(selected: SelectedSteps) -> list[Update]:
    """The updates, in order of their first step; none if the loop has one optimizer."""
    runs = selected.rows_of(selected.trace["stages"])
    runs = runs.take(np.argsort(runs["start_ns"], kind="stable"))
    names = runs.text("optimizer")
    known, first = np.unique(names.codes, return_index=True)
    order = [int(code) for _, code in sorted(zip(first, known, strict=True)) if code >= 0]
    if len(order) < 2:
        return []
    run_of = _run_of_events(selected, runs)
    models, counts, longest = _models(selected), _counts(selected, runs), _longest(runs)
    return [
        _update(selected, runs, run_of, models if code in longest else models[:0], code, counts)
        for code in order
    ]


def _longest(runs: Table) -> set[int]:
    """The codes of the optimizers with the most time."""
    chosen = runs.take(runs["optimizer"] >= 0)
    spent = np.bincount(chosen.text("optimizer").codes, chosen["cpu_ns"] + chosen["device_ns"])
    return {*np.argsort(-spent, kind="stable")[:_MOST_SPLIT].tolist()}


def _update(
    selected: SelectedSteps, runs: Table, run_of: Rows, models: Ids32, code: int, counts: Counter[str]
) -> Update:
    optimizer = runs.text("optimizer")
    here: Mask = optimizer.codes == code
    spent = [
        UpdateStage(
            STAGES[stage],
            float(runs["cpu_ns"][here & (runs["stage"] == stage)].sum()) * MS / selected.count,
            float(runs["device_ns"][here & (runs["stage"] == stage)].sum()) * MS / selected.count,
        )
        for stage in np.unique(runs["stage"][here]).tolist()
    ]
    inside = np.append(here, False)[run_of]
    return Update(
        optimizer=optimizer.values[code],
        count=counts[optimizer.values[code]] / selected.count,
        cpu_ms=sum(stage.cpu_ms for stage in spent),
        device_ms=sum(stage.device_ms for stage in spent),
        stages=spent,
        models=_models_of(selected, inside, models),
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
    events = selected.trace.events
    caller = launch_of(selected.trace)
    moment = np.where(caller >= 0, events["start_ns"][caller], events["start_ns"])
    found = np.searchsorted(runs["start_ns"], moment, side="right") - 1
    return np.where(selected.chosen_events, found, _NONE)


def _models(selected: SelectedSteps) -> Ids32:
    """The modules that an update is split into: the models, or the parts of the only one."""
    modules = selected.trace["modules"]
    roots = np.flatnonzero(models_that_run(modules, selected.rank))
    if len(roots) == 1:
        roots = np.flatnonzero(modules["parent"] == roots[0])
    return roots.astype(np.int32)


def _models_of(selected: SelectedSteps, inside: Mask, models: Ids32) -> list[UpdatedModel]:
    if not len(models):
        return []
    modules = selected.trace["modules"]
    costs = module_costs(selected.trace, modules["parent"], inside)
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
