"""Operations that answers are about, and the longest of many rows without sorting all."""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Times
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline import Level, Operation
from stepscope.facts.timeline.operation_costs import Costs
from stepscope.trace.row_order import begins_run

_MANY = 4  # times as many rows as are wanted: cutting off the rest is cheaper than sorting it


@dataclass(frozen=True, eq=False)
class Selection:
    """Operations of levels."""

    paths: list[str]  # of each
    operations: list[Operation]  # themselves
    costs: Costs  # of each alone
    forward: Ids  # partner events of each, -1 for none, shape (operations,)
    backward: Ids  # partner events of each, -1 for none, shape (operations,)

    @classmethod
    def joined(cls, *several: "Selection | Level") -> "Selection":
        return cls(
            [path for part in several for path in part.paths],
            [operation for part in several for operation in part.operations],
            Costs.joined([part.costs for part in several]),
            np.concatenate([part.forward for part in several]),
            np.concatenate([part.backward for part in several]),
        )


def selected(view: TraceView, path: str) -> Selection:
    """The operation with a path; raises TraceError if there is none."""
    level, row = view.timeline.find(path)
    rows = np.array([row])
    costs = level.costs.take(rows)
    return Selection([path], [level.operations[row]], costs, level.forward[rows], level.backward[rows])


def module_of(view: TraceView, operation: Operation) -> int:
    """The module that an operation is a call of, or belongs to; -1 for none."""
    if operation.module >= 0 or operation.event < 0:
        return operation.module
    return int(view.trace.events["module"][operation.event])


def known(column: IntArray, row: int | None) -> int | None:
    """The value in a row of a nullable column, None if it is null or there is no row."""
    value = -1 if row is None else int(column[row])
    return value if value >= 0 else None


def longest_of_each(of: Ids, time: Times, most: int) -> Ids:
    """The places of the rows that take most time in each of several sets, at most `most` of each.

    Set by set, the longest first; of equals the first. Rows have their set (`of`), ascending, and
    their time, ns.
    """
    first = np.flatnonzero(begins_run(of))
    size = np.diff(np.append(first, len(of)))
    kept = np.ones(len(of), np.bool_)
    large = size > _MANY * most
    for start, count in zip(first[large].tolist(), size[large].tolist(), strict=True):
        part = time[start : start + count]
        kept[start : start + count] = part >= np.partition(part, count - most)[count - most]
    rows = np.flatnonzero(kept)
    order = rows[np.lexsort((-time[rows], of[rows]))]
    rank = np.arange(len(order)) - np.searchsorted(of[order], of[order])
    return order[rank < most]
