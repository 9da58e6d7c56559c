"""The operators of a step with the device work that each launches, and graphs with other kernels."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.graph import Graph, remove
from stepscope.models.calibration.calibration import Operator, ScriptOperators, find_operators
from stepscope.models.kernels.operators import Product, padded, products_of
from stepscope.models.whatif.parts.autocast_flow import forward_rows
from stepscope.models.whatif.parts.kernel_times import compute_bound, work_of_tasks
from stepscope.models.whatif.parts.layers import first_of
from stepscope.trace.row_order import place_in_group
from stepscope.trace.schema import PASS_STAGES
from stepscope.trace.trace import Trace

_STAYS = re.compile(r"\bat::native\b")
_CELL = re.compile(r"elemWise|elementWise")  # of cuDNN's recurrent layers
_SIMPLE = ("add", "add_", "mul", "relu", "relu_", "gelu", "tanh", "copy_", "to", "div", "sum", "clone")


class KernelTimes(NamedTuple):
    """The kernels of an operator after a change."""

    multiplied_ns: float  # those of products and what prepares them
    other_ns: float  # the others
    launches: int = -1  # how many of the first kind; -1 for as many as recorded
    called: float = 1.0  # what the CPU takes for the operator, relative to what it took


@dataclass(frozen=True, eq=False)
class StepWork:
    """The outermost operators of forward and backward, with the device work that each launches."""

    operators: ScriptOperators
    ahead: Ids  # the operator that each differentiates, or -1; shape (operators,), as all below
    device_ns: Floats  # all kernels
    product_ns: Floats  # kernels of products, convolutions and attention, and those that prepare them
    kernels: Ids  # how many kernels
    launches: Ids  # how many operations of the device, with those that clear memory
    replaced: Mask  # whether each task is one of `product_ns`; shape (tasks,)
    cells_ns: Floats  # of `product_ns`, the cells of recurrent layers
    flops: Floats  # operations by the roofline; 0 if unknown
    moved: Floats  # bytes by the roofline; 0 if unknown
    task: Ids  # the first CPU task of each, or -1
    kernel: Ids  # the first kernel of each, or -1
    of_task: Ids  # the operator of each task of the graph, or -1; shape (tasks,)
    backward: Mask  # whether it belongs to the backward pass
    # what the CPU takes for an operator of one elementwise kernel, in forward and in backward; shape (2,)
    simple_call_ns: Floats

    @property
    def other_ns(self) -> Floats:
        """Kernels that multiply nothing."""
        return self.device_ns - self.product_ns

    @cached_property
    def names(self) -> list[str]:
        """The name of each operator; empty if it is not known."""
        return [call.name if call else "" for call in self.operators.calls]

    def call(self, row: int) -> Operator | None:
        """The call of an operator."""
        return self.operators.calls[row]

    def forward_call(self, row: int) -> Operator | None:
        """The call that a backward operator differentiates."""
        ahead = int(self.ahead[row])
        return self.operators.calls[ahead] if ahead >= 0 else None

    def products(self, row: int, pads: bool = False) -> list[Product]:
        """The products of an operator; with `pads`, of sizes whose rows are aligned."""
        call = self.call(row)
        products = products_of(call, self.forward_call(row)) if call else []
        return list(map(padded, products)) if pads else products

    def with_product(self, tasks: Mask) -> Mask:
        """The operators that have one of some tasks among the kernels of their products."""
        return np.bincount(self.of_task[tasks & self.replaced], minlength=len(self.operators.rows)) > 0

    def unchanged(self, row: int) -> KernelTimes:
        """The kernels of an operator as they are."""
        return KernelTimes(float(self.product_ns[row]), float(self.other_ns[row]))

    def with_kernels(
        self, graph: Graph, changed: Mapping[int, KernelTimes], casts_ns: tuple[Floats, ...] = ()
    ) -> Graph:
        """The graph with other kernels of some operators; casts take time on the device, before an operator's
        first kernel, and on the CPU, before its first task: ns, shape (operators,) each, or none."""
        kernels = [changed.get(row) or self.unchanged(row) for row in range(len(self.operators.rows))]
        multiplied, other, count, pace = (np.array(column) for column in zip(*kernels, strict=True))
        surplus = self.surplus(graph, count, self.replaced)
        length = graph.tasks["duration_ns"].astype(np.float64)
        works = graph.on_device & (self.of_task >= 0) & ~surplus
        for time, rows in ((multiplied, works & self.replaced), (other, works & ~self.replaced)):
            before = _sums(self.of_task[rows], length[rows], len(time))
            length[rows] *= (time / np.maximum(before, 1))[self.of_task[rows]]
        host = ~graph.on_device & (self.of_task >= 0)
        length[host] *= pace[self.of_task[host]]
        for place, extra in zip((self.kernel, self.task), casts_ns, strict=False):
            has = (place >= 0) & (extra > 0)
            np.add.at(length, place[has], extra[has])
        return remove(graph.with_tasks(duration_ns=np.rint(length)), surplus)

    def surplus(self, graph: Graph, count: Ids, kernels: Mask) -> Mask:
        """Some kernels beyond an operator's count, the shortest, and what clears memory for them; of
        an operator with the count -1 none."""
        changed = np.append(count >= 0, False)[self.of_task]
        result = changed & graph.on_device & graph.tasks.text("category").mask("memset")
        rows = np.flatnonzero(changed & kernels)
        rows = rows[np.lexsort((-graph.tasks["duration_ns"][rows], self.of_task[rows]))]
        owner = self.of_task[rows]
        result[rows[place_in_group(owner) >= np.maximum(count[owner], 1)]] = True
        return result


def step_work(graph: Graph) -> StepWork:
    """The operators of a graph's steps, with the work of their kernels as the graph has it."""
    stage = graph.trace.events.text("stage")
    operators = step_operators(graph)
    count, device = len(operators.rows), graph.on_device
    event = graph.tasks["event"]
    caller = np.where(device, launch_of(graph.trace)[event], event)
    of_task = np.where((event >= 0) & (caller >= 0), np.append(operators.around, -1)[caller], -1)
    rows = np.flatnonzero(device & (of_task >= 0))
    backward = stage.mask("backward")[operators.rows]
    ahead, _ = forward_rows(graph.trace, operators, backward)
    flops, moved = (np.nan_to_num(work) for work in graph.once(work_of_tasks)[:2])
    time = graph.tasks["duration_ns"]
    multiplies = _replaced(graph, of_task, count)
    cells = graph.tasks.text("name").where(lambda name: bool(_CELL.search(name)))
    kernels = _sums(of_task[rows], graph.tasks.text("category").mask("kernel")[rows], count)
    return StepWork(
        operators=operators,
        ahead=ahead,
        device_ns=_sums(of_task[rows], time[rows], count),
        product_ns=_sums(of_task[rows], np.where(multiplies, time, 0)[rows], count),
        kernels=kernels.astype(np.int64),
        launches=np.bincount(of_task[rows], minlength=count),
        replaced=multiplies,
        cells_ns=_sums(of_task[rows], np.where(cells, time, 0)[rows], count),
        flops=_sums(of_task[rows], flops[rows], count),
        moved=_sums(of_task[rows], moved[rows], count),
        task=first_of(of_task, np.flatnonzero(~device & (of_task >= 0)), np.arange(count)),
        kernel=first_of(of_task, rows, np.arange(count)),
        of_task=of_task,
        backward=backward,
        simple_call_ns=_simple_call_ns(graph, operators, of_task, (kernels == 1), backward),
    )


_FOUND: WeakKeyDictionary[Trace, dict[tuple[int, ...], ScriptOperators]] = WeakKeyDictionary()


def step_operators(graph: Graph) -> ScriptOperators:
    """The operators of a graph's steps, found once for all that changes make of the graph."""
    steps, of_trace = graph.window.steps, _FOUND.setdefault(graph.trace, {})
    if steps not in of_trace:
        events = graph.trace.events
        chosen = events.text("stage").mask(*PASS_STAGES) & np.isin(events["step"], steps)
        of_trace[steps] = find_operators(graph.trace, chosen)
    return of_trace[steps]


def _replaced(graph: Graph, of_task: Ids, count: int) -> Mask:
    """Kernels that a product in another precision does without: its own, and those of the library
    that prepare it, such as the transforms of FFT and Winograd. PyTorch's own stay."""
    multiplying = np.bincount(of_task[compute_bound(graph) & (of_task >= 0)], minlength=count) > 0
    inside = np.append(multiplying, False)[of_task] & graph.tasks.text("category").mask("kernel")
    return inside & ~graph.tasks.text("name").where(lambda name: bool(_STAYS.search(name)))


def _sums(group: Ids, values: Floats | Mask, count: int) -> Floats:
    return np.bincount(group, values.astype(np.float64), count).astype(np.float64)


def _simple_call_ns(
    graph: Graph, operators: ScriptOperators, of_task: Ids, single: Mask, backward: Mask
) -> Floats:
    names = [call.name if call else "" for call in operators.calls]
    simple = np.isin(names, _SIMPLE) & single
    host = ~graph.on_device & (of_task >= 0)
    time = _sums(of_task[host], graph.tasks["duration_ns"][host], len(names))
    stages = (time[simple & ~backward], time[simple & backward])
    return np.array([float(np.median(one)) if len(one) else 0.0 for one in stages])
