"""Attribution of each event of a recorded step: lines, module, operator, forward or backward.

A backward event has the attribution of its forward event.
"""

from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Ids32, IntArray, Mask
from stepscope.facts.annotate.range_names import ENGINE, Line, has_lines, operators, parse_lines
from stepscope.trace.nesting import inherit, innermost, is_inside
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_UPDATE = "Optimizer.step#"


@dataclass(frozen=True)
class Attribution:
    """One value an event, shape (events,)."""

    lines: Ids32  # position in `stacks`, or -1
    module: Ids32  # row of the modules table, or -1
    operator: Ids32  # position in `operators`, or -1
    root: Ids32
    backward: Mask  # whether it runs backward
    stage: Ids32  # position in STAGES, or -1
    stacks: list[tuple[Line, ...]]  # the lines that led to an operator, outermost first
    operators: list[str]  # names


def attribute(trace: Trace) -> Attribution:
    """Attribute every event of a capture with ranges of lines and modules."""
    events, names = trace.events, trace.events.text("name")
    roots, (lines, stacks) = _roots(events), _lines(events)
    linked = is_inside(events["parent"], events["forward_event"] >= 0)
    return Attribution(
        lines=_over_backward(events, lines),
        module=events["module"].astype(np.int32),
        operator=_over_backward(events, np.where(roots, names.codes, -1)),
        root=innermost(events["parent"], roots),
        backward=linked | events.text("stage").mask("backward"),
        stage=events["stage"].astype(np.int32),
        stacks=stacks,
        operators=[name.removeprefix(ENGINE) for name in names.values],
    )


def _roots(events: Table) -> Mask:
    """The outermost operators: those directly in a range, a step or a thread; and each node of the
    gradient graph, which runs inside the call of `backward`."""
    names, parent = events.text("name"), events["parent"]
    operator = operators(events)
    inside = operator[parent] & (parent >= 0)
    return (operator & ~inside) | names.where(lambda name: name.startswith(ENGINE))


def _lines(events: Table) -> tuple[Ids32, list[tuple[Line, ...]]]:
    """Each range of lines as the position of its stack.

    The range of an optimizer's step has the lines of the first call in it: the Python between its
    calls is of the same line.
    """
    names, parent = events.text("name"), events["parent"]
    stacks: list[tuple[Line, ...]] = []
    number = np.full(len(names.values) + 1, -1, np.int32)
    for code, name in enumerate(names.values):
        if has_lines(name):
            number[code] = len(stacks)
            stacks.append(parse_lines(name))
    lines = number[names.codes]
    update = names.where(lambda name: name.startswith(_UPDATE))
    first = np.flatnonzero((lines >= 0) & (parent >= 0) & update[parent])[::-1]
    lines[parent[first]] = lines[first]
    return lines, stacks


def _over_backward(events: Table, own: IntArray) -> Ids32:
    """Inherited from around, then from forward events, whose value outdoes what is around."""
    parent, forward = events["parent"], events["forward_event"]
    value = inherit(parent, own)
    from_forward = np.where(forward >= 0, value[forward], -1)
    return inherit(parent, np.where(from_forward >= 0, from_forward, own))
