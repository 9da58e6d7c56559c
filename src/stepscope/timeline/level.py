"""One level of the timeline: what is inside an operation, fitted to its span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids
from stepscope.timeline.operation import Operation
from stepscope.timeline.operation_costs import Costs
from stepscope.timeline.resource_rows import Resource


@dataclass(frozen=True, eq=False)
class Level:
    """The operations inside one operation, by time on the CPU.

    Attributes:
        path: ids from a step to the operation that is opened; empty for the trace.
        name: of the operation that is opened.
        operations: those inside it.
        costs: of each of them.
        resources: the threads and streams they run on, the hidden ones too.
        forward: the forward event of the first backward one in each, else -1, (operations,).
        backward: the first backward event of anything in each, else -1, (operations,).
        launch: the call that started each piece of device work, else -1, (operations,).
        through: operations opened on the way, as each was alone in its parent.
        passed: raw events that are the opened ones themselves and lie in none of the operations.
        hidden: raw events of operations on threads that are not shown.
        start_ns: start of its span on the CPU.
        end_ns: end of its span with the device side `shift_ns` earlier, so that a device that lags
            the CPU throughout makes no level longer.
        shift_ns: how far the device lags the CPU where the level's device work begins.
    """

    path: tuple[str, ...]
    name: str
    operations: list[Operation]
    costs: Costs
    resources: list[Resource]
    forward: Ids
    backward: Ids
    launch: Ids
    through: tuple[str, ...]
    passed: int
    hidden: int
    start_ns: int
    end_ns: int
    shift_ns: int

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def reach_ns(self) -> int:
        """When its work ends on either side, as recorded."""
        return max(self.end_ns, int(self.costs.parts.end_ns.max(initial=0)))

    def find(self, id: str) -> int | None:
        """Number of the operation with an id, None where the level lists none."""
        return next((i for i, one in enumerate(self.operations) if one.id == id), None)


def alignment(costs: Costs, start_ns: int) -> int:
    """How far the device lags the CPU where the device work of a level begins, ns, at least 0.

    Args:
        costs: of the level's operations.
        start_ns: start of the operation that is opened, where none inside has a CPU side.

    Source: HOTLINE appendix C.2 (Align Timelines).
    """
    works = np.flatnonzero(costs.device_start_ns >= 0)
    if not len(works):
        return 0
    both = works[costs.start_ns[works] >= 0]
    if not len(both):
        return max(int(costs.device_start_ns[works].min()) - start_ns, 0)
    first = both[np.argmin(costs.start_ns[both])]
    return max(int(costs.device_start_ns[first] - costs.start_ns[first]), 0)


def span_end(costs: Costs, shift_ns: int, start_ns: int, end_ns: int) -> int:
    """End of a level: of its CPU side, or of its device side without its lag, if that is later."""
    return int(max(end_ns, start_ns, costs.device_end_ns.max(initial=0) - shift_ns))
