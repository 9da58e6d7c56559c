"""The operations of a level: the operations of each lane, grouped into sections."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stepscope.arrays import Ids, Times
from stepscope.timeline.lanes import Contents, Lane
from stepscope.timeline.operation import Operation, Spread
from stepscope.timeline.operation_costs import Costs
from stepscope.timeline.operation_labels import range_name, summary_name
from stepscope.timeline.repeated_patterns import whole_period
from stepscope.timeline.sections import Operations, find_sections


def group(
    contents: Contents, lane: Lane, costs: Costs, parent_ns: int, tiny: float
) -> list[Operation]:
    """A lane's operations and sections, in order.

    Args:
        contents: of the trace.
        lane: inside the operation that is opened.
        costs: of the lane's operations.
        parent_ns: runtime of the operation that is opened.
        tiny: see `find_sections`.
    """
    facts = Operations(
        name=contents.name_codes(lane),
        block=contents.blocks[lane.module],
        cpu_ns=costs.cpu_ns,
        device_ns=costs.device_ns,
    )
    bounds = find_sections(facts, parent_ns, tiny).tolist()
    return [
        _single(contents, lane, first)
        if end - first == 1
        else _section(contents, lane, facts, first, end)
        for first, end in pairwise(bounds)
    ]


def _single(contents: Contents, lane: Lane, number: int) -> Operation:
    event, module = contents.event(lane, number), int(lane.module[number])
    rows = lane.rows[lane.bounds[number] : lane.bounds[number + 1]]
    return Operation(
        id=_id(contents, lane, number),
        kind="event" if module < 0 else "module",
        name=contents.name(lane, number),
        rows=rows,
        context=contents.context_in(lane, number),
        track=lane.track,
        event=event,
        module=module,
        recompute=bool(contents.recompute[rows[0]]),
    )


def _id(contents: Contents, lane: Lane, number: int) -> str:
    first, module = lane.rows[lane.bounds[number]], lane.module[number]
    return f"e{first}" if contents.event(lane, number) >= 0 else f"m{module}.{first}"


def _section(contents: Contents, lane: Lane, facts: Operations, first: int, end: int) -> Operation:
    part = lane.part(first, end)
    names = _names(contents, lane, facts, first, end)
    copies = _copies(facts, first, end)
    runtime = np.add.reduceat(_longer_side(facts, first, end), copies)
    slowest = first + int(copies[runtime.argmax()])
    return Operation(
        id=f"x{part.rows[0]}.{part.rows[-1]}",
        kind=_kind(facts, first, end, len(copies)),
        name=_name(facts, names, first, end, len(copies)),
        rows=part.rows,
        context=lane.context,
        track=lane.track,
        recompute=bool(contents.recompute[part.rows].all()),
        part=part,
        spread=Spread(
            count=len(copies),
            least_ns=int(runtime.min()),
            mean_ns=round(runtime.mean()),
            most_ns=int(runtime.max()),
            slowest=_id(contents, lane, slowest),
        ),
    )


def _names(contents: Contents, lane: Lane, facts: Operations, first: int, end: int) -> list[str]:
    """The name of each operation; those that share a code share it, and few codes are many."""
    _, where, which = np.unique(facts.name[first:end], return_index=True, return_inverse=True)
    distinct = [contents.name(lane, first + number) for number in where.tolist()]
    return [distinct[code] for code in which.tolist()]


def _copies(facts: Operations, first: int, end: int) -> Ids:
    """Where the copies of a pattern begin that is all there is, else where each operation does."""
    return np.arange(0, end - first, whole_period(facts.name[first:end]))


def _name(facts: Operations, names: list[str], first: int, end: int, copies: int) -> str:
    if _is_one_block(facts, first, end):
        return range_name(names[0], names[-1])
    name = summary_name(names, _longer_side(facts, first, end))
    return name if copies == len(names) else f"{name} ×{copies}"


def _kind(facts: Operations, first: int, end: int, copies: int) -> str:
    if _is_one_block(facts, first, end) or copies < end - first:
        return "repeat"
    name = facts.name[first:end]
    return "series" if (name == name[0]).all() else "section"


def _is_one_block(facts: Operations, first: int, end: int) -> bool:
    block = facts.block[first:end]
    return bool(block[0] >= 0 and (block == block[0]).all())


def _longer_side(facts: Operations, first: int, end: int) -> Times:
    """Times of the operations on the side that takes longer for all of them together."""
    cpu, device = facts.cpu_ns[first:end], facts.device_ns[first:end]
    return device if device.sum() >= cpu.sum() else cpu
