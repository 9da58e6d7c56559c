"""The updates of several optimizers in a terminal report."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from stepscope.summary.facts import Summary, Update, UpdatedModel
from stepscope.summary.numbers import ms, percent
from stepscope.summary.text_tables import STAGE_STYLE, plain_table, stage_words

_PHASES = ("forward", "backward")


def updates_table(summary: Summary) -> Table:
    """A row for each update, and one for each model in it: device time if there is a device."""
    side = "device" if summary.devices else "cpu"
    where = "device" if summary.devices else "CPU"
    found = {stage.stage for update in summary.updates for stage in update.stages}
    stages = [stage for stage in STAGE_STYLE if stage in found]
    heads = (f"{stage_words(stage)}>" for stage in stages)
    table = plain_table(
        f"Updates by optimizer, {where} ms per step", "", "times>", *heads, "of step>"
    )
    for update in summary.updates:
        _add_update(table, update, stages, side, summary.steps.mean_ms or 1.0)
        for model in update.models if len(update.models) > 1 else []:
            table.add_row(Text(f"  {model.path}", "dim"), "", *_of_model(model, stages, side), "")
    return table


def _add_update(table: Table, update: Update, stages: list[str], side: str, step_ms: float) -> None:
    spent = {stage.stage: getattr(stage, f"{side}_ms") for stage in update.stages}
    cells = (
        Text(ms(spent[stage]) if stage in spent else "", STAGE_STYLE[stage]) for stage in stages
    )
    share = getattr(update, f"{side}_ms") / step_ms
    table.add_row(update.optimizer, f"{update.count:.3g}", *cells, percent(share))


def _of_model(model: UpdatedModel, stages: list[str], side: str) -> list[Text]:
    """The times of a model's passes below those of the update; it has no other stages."""
    spent = {phase: getattr(model, f"{phase}_{side}_ms") for phase in _PHASES}
    return [Text(ms(spent[stage]) if spent.get(stage) else "", "dim") for stage in stages]
