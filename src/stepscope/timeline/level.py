"""One level of the timeline: what is inside an operation, fitted to its span."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Ids, Times
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
    def paths(self) -> list[str]:
        """The path of each operation."""
        above = "".join(f"{part}/" for part in self.path)
        return [above + one.id for one in self.operations]

    @property
    def hides(self) -> bool:
        """Whether there are threads or streams that it does not list."""
        return not all(resource.shown for resource in self.resources)

    @property
    def reach_ns(self) -> int:
        """When its work ends on either side, as recorded."""
        return max(self.end_ns, int(self.costs.parts.end_ns.max(initial=0)))

    def find(self, id: str) -> int | None:
        """Number of the operation with an id, None where the level lists none."""
        return next((i for i, one in enumerate(self.operations) if one.id == id), None)


@dataclass(frozen=True, eq=False)
class Opening:
    """The level inside an operation: what it shows by default, and with all threads and streams."""

    shown: Level
    every: Level


def alignments(costs: Costs, level: Ids, start_ns: Times) -> Times:
    """How far the device lags the CPU where the device work of each level begins, ns, at least 0.

    Args:
        costs: of the operations of the levels.
        level: of each operation, ascending, shape (operations,).
        start_ns: start of the operation that each level opens, where none inside has a CPU side;
            shape (levels,).

    Source: HOTLINE appendix C.2 (Align Timelines).
    """
    works = costs.device_start_ns >= 0
    earliest = start_ns + 2**62
    np.minimum.at(earliest, level[works], costs.device_start_ns[works])
    lag = np.where(earliest < start_ns + 2**62, earliest - start_ns, 0)
    both = np.flatnonzero(works & (costs.start_ns >= 0))
    order = both[np.lexsort((costs.start_ns[both], level[both]))]
    of, first = np.unique(level[order], return_index=True)
    lag[of] = (costs.device_start_ns - costs.start_ns)[order[first]]
    shift: Times = np.maximum(lag, 0)
    return shift


def span_ends(costs: Costs, level: Ids, shift_ns: Times, start_ns: Times, end_ns: Times) -> Times:
    """End of each level: of its CPU side, or of its device side without its lag if that is later.

    Args:
        costs: of the operations of the levels.
        level: of each operation.
        shift_ns, start_ns, end_ns: of each level.
    """
    device = np.zeros(len(start_ns), np.int64)
    np.maximum.at(device, level, costs.device_end_ns)
    ends: Times = np.maximum(np.maximum(start_ns, end_ns), device - shift_ns)
    return ends
