"""Kernels by name, or operators if there is no device, with statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats, IntArray, Rows
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_MS = 1e-6


@dataclass(frozen=True)
class WorkOfName:
    """All device work of one name, or all operators of one name.

    Attributes:
        name: as recorded.
        kind: kind of the longest piece, one of `KERNEL_KINDS`.
        count: mean per step.
        total_ms: mean per step; self time for operators.
        share: share of all work.
        mean_ns, least_ns, most_ns, std_ns: statistics of the pieces.
        longest_event: id of the longest piece.
        stages: share of the time in each known stage.
    """

    name: str
    kind: str
    count: float
    total_ms: float
    share: float
    mean_ns: int
    least_ns: int
    most_ns: int
    std_ns: int
    longest_event: int
    stages: dict[str, float]


@dataclass(frozen=True)
class WorkTable:
    """Work of the selected steps: what it is (`kernels` or `operators`), a row for each name."""

    are: str
    steps: list[int]
    rows: list[WorkOfName]


def work_by_name(trace: Trace, rank: int, step: int | None = None) -> WorkTable:
    """The device work of one rank by name, the longest first; operators if there is none.

    Args:
        trace: an annotated trace.
        rank: which rank.
        step: number of one step; by default the mean over all steps but a warm-up step.

    Raises:
        TraceError: if there is no such rank or step.
    """
    selected = SelectedSteps(trace, rank, step)
    found = sorted(_rows(selected), key=lambda row: (-row.total_ms, row.name))
    are = "kernels" if selected.works_on_device else "operators"
    return WorkTable(are, selected.steps["step"].tolist(), found)


def _rows(selected: SelectedSteps) -> list[WorkOfName]:
    events, rows = selected.trace.events, selected.work
    time = selected.work_ns.astype(np.float64)
    names, name = np.unique(events["name"][rows], return_inverse=True)
    count, total = np.bincount(name), np.bincount(name, time)
    mean = total / np.maximum(count, 1)
    std = np.sqrt(np.bincount(name, (time - mean[name]) ** 2) / np.maximum(count, 1))
    order = np.lexsort((rows, time, name))  # the last of each name is its longest
    ends = np.cumsum(count)
    least, longest = order[ends - count], order[ends - 1]
    stages = _stage_shares(events["stage"][rows], name, time, len(names))
    whole = max(float(total.sum()), 1.0)
    texts, kinds = events.text("name").values, events.text("kind")
    return [
        WorkOfName(
            name=texts[code],
            kind=kinds[int(rows[longest[number]])] or "",
            count=float(count[number] / selected.count),
            total_ms=float(total[number] * _MS / selected.count),
            share=float(total[number] / whole),
            mean_ns=round(mean[number]),
            least_ns=int(time[least[number]]),
            most_ns=int(time[longest[number]]),
            std_ns=round(std[number]),
            longest_event=int(rows[longest[number]]),
            stages=stages[number],
        )
        for number, code in enumerate(names.tolist())
    ]


def _stage_shares(stage: IntArray, name: Rows, time: Floats, names: int) -> list[dict[str, float]]:
    """Shares of each name's time by stage, the largest first."""
    known = stage >= 0
    key = name[known] * len(STAGES) + stage[known]
    spent = np.bincount(key, time[known], names * len(STAGES)).reshape(names, len(STAGES))
    shares = spent / np.maximum(np.bincount(name, time, names), 1.0)[:, None]
    return [
        {STAGES[code]: float(row[code]) for code in np.argsort(-row).tolist() if row[code] > 0}
        for row in shares
    ]
