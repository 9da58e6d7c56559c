"""The operations of a level: those of a lane, in sections where nothing names any."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from stepscope.timeline.lanes import Contents, Lane
from stepscope.timeline.measure import Costs
from stepscope.timeline.names import range_name, summary_name
from stepscope.timeline.operation import Operation, Spread
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
    names = [contents.name(lane, number) for number in range(first, end)]
    kind = _kind(facts, first, end)
    runtime = _longer_side(facts, first, end)
    slowest = _id(contents, lane, first + int(runtime.argmax()))
    return Operation(
        id=f"x{part.rows[0]}.{part.rows[-1]}",
        kind=kind,
        name=range_name(names[0], names[-1]) if kind == "repeat" else summary_name(names, runtime),
        rows=part.rows,
        context=lane.context,
        track=lane.track,
        recompute=bool(contents.recompute[part.rows].all()),
        part=part,
        spread=Spread(
            end - first, int(runtime.min()), round(runtime.mean()), int(runtime.max()), slowest
        ),
    )


def _kind(facts: Operations, first: int, end: int) -> str:
    block, name = facts.block[first:end], facts.name[first:end]
    if block[0] >= 0 and (block == block[0]).all():
        return "repeat"
    return "series" if (name == name[0]).all() else "section"


def _longer_side(
    facts: Operations, first: int, end: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Times of the operations on the side that takes longer for all of them together."""
    cpu, device = facts.cpu_ns[first:end], facts.device_ns[first:end]
    return device if device.sum() >= cpu.sum() else cpu
