"""The iterations of an inference server, or of a generating loop, by kind."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Mask
from stepscope.summary.facts import Iterations
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.schema import INFERENCE_STAGES
from stepscope.trace.table import Table

_COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")


def iterations_of(selected: SelectedSteps) -> list[Iterations]:
    """The iterations that begin in the selected steps, by kind."""
    table = selected.trace["iterations"]
    table = table.take(_chosen(selected, table))
    kinds = (
        (stage, table.take(table["stage"] == code)) for code, stage in enumerate(INFERENCE_STAGES)
    )
    return [_of_kind(stage, rows) for stage, rows in kinds if len(rows)]


def _chosen(selected: SelectedSteps, table: Table) -> Mask:
    steps = selected.steps
    index = np.searchsorted(steps["start_ns"], table["start_ns"], side="right") - 1
    inside = (index >= 0) & (table["start_ns"] < steps["end_ns"][np.maximum(index, 0)])
    chosen: Mask = inside & (table["rank"] == selected.rank)
    return chosen


def _of_kind(stage: str, rows: Table) -> Iterations:
    means = {name: _mean(rows[name]) for name in _COUNTS}
    return Iterations(stage, len(rows), _ms(rows), **means)


def _ms(rows: Table) -> float:
    return float((rows["end_ns"] - rows["start_ns"]).mean()) / 1e6


def _mean(values: np.typing.NDArray[np.int32]) -> float | None:
    return float(values.mean()) if (values >= 0).all() else None
