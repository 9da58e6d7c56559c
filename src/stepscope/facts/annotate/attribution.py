"""Attribution of each event of a recorded step: lines, module, operator, forward or backward.

A backward event has the attribution of its forward event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.base.arrays import Ids32, IntArray, Mask
from stepscope.facts.annotate.range_names import Line, has_lines, parse_lines
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_ENGINE_PREFIX = "autograd::engine::evaluate_function: "
_UPDATE = "Optimizer.step#"
_BACKWARD = STAGES.index("backward")


@dataclass(frozen=True)
class Attribution:
    """One value an event, shape (events,).

    Attributes:
        lines: position in `stacks`, or -1.
        module: row of the modules table, or -1.
        operator: position in `operators`, or -1.
        backward: whether it runs backward.
        stage: position in STAGES, or -1.
        stacks: the lines that led to an operator, outermost first.
        operators: names.
    """

    lines: Ids32
    module: Ids32
    operator: Ids32
    root: Ids32
    backward: Mask
    stage: Ids32
    stacks: list[tuple[Line, ...]]
    operators: list[str]


def attribute(trace: Trace) -> Attribution:
    """Attribute every event of a capture with ranges of lines and modules."""
    return _Attributing(trace).result()


class _Attributing:
    def __init__(self, trace: Trace) -> None:
        self.events: Table = trace.events
        self.names = trace.events.text("name")

    def result(self) -> Attribution:
        lines, stacks = self._lines()
        operator = self._over_backward(np.where(self._roots, self.names.codes, -1))
        linked = inherit(self.events["parent"], np.where(self.events["forward_event"] >= 0, 1, -1))
        return Attribution(
            lines=self._over_backward(lines),
            module=self.events["module"].astype(np.int32),
            operator=operator,
            root=inherit(self.events["parent"], np.where(self._roots, np.arange(len(self.events)), -1)),
            backward=(linked > 0) | (self.events["stage"] == _BACKWARD),
            stage=self.events["stage"].astype(np.int32),
            stacks=stacks,
            operators=[name.removeprefix(_ENGINE_PREFIX) for name in self.names.values],
        )

    @cached_property
    def _roots(self) -> Mask:
        """The outermost operators: those directly in a range, a step or a thread; and each node of
        the gradient graph, which runs inside the call of `backward`."""
        operator = self.events.text("category").mask("cpu_op") & ~self.names.where(
            lambda name: name.startswith("stepscope.")
        )
        parent = self.events["parent"]
        inside = operator[parent] & (parent >= 0)
        engine = self.names.where(lambda name: name.startswith(_ENGINE_PREFIX))
        return (operator & ~inside) | engine

    def _lines(self) -> tuple[Ids32, list[tuple[Line, ...]]]:
        """Each range of lines as the position of its stack."""
        stacks: list[tuple[Line, ...]] = []
        number = np.full(len(self.names.values) + 1, -1, np.int32)
        for code, name in enumerate(self.names.values):
            if has_lines(name):
                number[code] = len(stacks)
                stacks.append(parse_lines(name))
        return self._around_updates(number[self.names.codes]), stacks

    def _around_updates(self, lines: Ids32) -> Ids32:
        """The range of an optimizer's step has the lines of the first call in it.

        The Python between its calls is of the same line.
        """
        parent = self.events["parent"]
        update = self.names.where(lambda name: name.startswith(_UPDATE))
        first = np.flatnonzero((lines >= 0) & (parent >= 0) & update[parent])[::-1]
        lines = lines.copy()
        lines[parent[first]] = lines[first]
        return lines

    def _over_backward(self, own: IntArray) -> Ids32:
        """Inherited from around, then from forward events, whose value outdoes what is around."""
        parent, forward = self.events["parent"], self.events["forward_event"]
        value = inherit(parent, own)
        from_forward = np.where(forward >= 0, value[forward], -1)
        return inherit(parent, np.where(from_forward >= 0, from_forward, own))
