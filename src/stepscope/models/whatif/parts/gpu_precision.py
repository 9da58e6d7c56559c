"""The operators of a step on a GPU in another precision: kernels by shape, casts as work of their own.

Products, convolutions, attention and recurrent layers run other kernels in another precision, so
their time follows from shapes (`models.kernels`), not from the recorded time. Other kernels keep
the part of their time in which they move no bytes. Casts cost the device two passes over a value,
and the CPU a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.graph import Graph, remove
from stepscope.models.calibration import find_operators
from stepscope.models.calibration.calibration import Operator, ScriptOperators
from stepscope.models.kernels.gpu import BYTES, HALF, SINGLE, TF32, Gpu, find_gpu
from stepscope.models.kernels.operators import (
    ATTENTION,
    Convolution,
    Product,
    attention_ns,
    launches_of,
    padded,
    products_ns,
    products_of,
    tensors,
    transposing_ns,
)
from stepscope.models.kernels.products import bandwidth_reached
from stepscope.models.whatif.parts.autocast_flow import Effect, effects_of, forward_rows, policy_of
from stepscope.models.whatif.parts.kernel_times import compute_bound, device_of, memory_rate, work_of_tasks
from stepscope.trace.schema import FORWARD_STAGES

# Products take at most so many times as long, or as short, as predicted: 95 % of those in the tables
# of `kernels.products` on a device that was left out.
_LONGER = {"typical": 1.0, "low": 1.35, "high": 1 / 1.35}
CHANNELS_LAST, ALIGNED_ROWS = "channels_last", "aligned_rows"  # settings of a graph
_STAGES = (*FORWARD_STAGES, "backward")
_FLOOR_NS = 1000.0  # of a kernel that moves nothing, on any device: the shortest ones of an H200
_LONG_NS = 20_000  # chosen: a cell's kernel of a recurrent layer that is longer moves its gates
_STAYS = re.compile(r"\bat::native\b")
_CELL = re.compile(r"elemWise|elementWise")  # of cuDNN's recurrent layers
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn_backward")
NORMS = ("batch_norm", "cudnn_batch_norm_backward", "native_batch_norm_backward")
_NATIVE_NORM = 1.2  # of FP32's time: batch norm leaves cuDNN in bfloat16; ResNet-50, U-Net on an H200
_MIXED_SUM = 10 / 12  # of the bytes: one of two values read is in 16 bits
_SIMPLE = ("add", "add_", "mul", "relu", "relu_", "gelu", "tanh", "copy_", "to", "div", "sum", "clone")


def precise_gpu(graph: Graph) -> Gpu | None:
    """The graph's GPU, if products can be predicted there: its rates are known, and shapes are."""
    gpu = find_gpu(device_of(graph))
    return gpu if gpu is not None and graph.once(_has_shapes) else None


def _has_shapes(graph: Graph) -> bool:
    return any(call is not None for call in graph.once(step_work).operators.calls)


def autocast_on_gpu(graph: Graph, gpu: Gpu, estimate: str = "typical", bfloat: bool = True) -> Graph:
    """Forward and backward under `torch.autocast`, as CUDA's policy has it.

    Args:
        estimate: `typical`, or `low` or `high` with products slower or faster than predicted.
        bfloat: to bfloat16, else to float16.

    Raises:
        ChangeError: if nothing computes in FP32.
    """
    work = graph.once(step_work)
    effects = effects_of(graph, work.operators, policy_of("cuda"))
    if not any(effect.half for effect in effects):
        raise ChangeError("amp: no matrix product or convolution runs in 32 bits")
    rate = memory_rate(graph) or bandwidth_reached(gpu)
    model = _Autocast(work, gpu, effects, rate, bfloat, _LONGER[estimate], graph.settings)
    rows = range(len(effects))
    casts = [model.casts(row) for row in rows]
    moving = np.array([sum(map(model.cast_ns, sizes)) for sizes in casts])
    calls = np.array([len(sizes) for sizes in casts]) * work.simple_call_ns[work.backward.astype(np.int8)]
    return work.retimed(graph, [model.kernels(row) for row in rows], moving, calls).having(HALF)


def tf32_on_gpu(graph: Graph, gpu: Gpu) -> Graph:
    """FP32 products and convolutions in TF32."""
    work = graph.once(step_work)
    rows = range(len(work.operators.rows))
    nothing = np.zeros(len(rows))
    kernels = [_in_tf32(work, gpu, row, ALIGNED_ROWS in graph.settings) for row in rows]
    return work.retimed(graph, kernels, nothing, nothing).having(TF32)


class Kernels(NamedTuple):
    """The kernels of an operator after a change.

    Attributes:
        multiplied_ns: those of products and what prepares them.
        other_ns: the others.
        launches: how many of the first kind; -1 for as many as recorded.
        called: what the CPU takes for the operator, relative to what it took.
    """

    multiplied_ns: float
    other_ns: float
    launches: int = -1
    called: float = 1.0


def _in_tf32(work: StepWork, gpu: Gpu, row: int, pads: bool) -> Kernels:
    call = work.call(row)
    recorded, other = float(work.product_ns[row]), float(work.other_ns[row])
    products = work.products(row, pads) if call and call.floats else []
    if not products or not recorded:
        return Kernels(recorded, other)
    if work.cells_ns[row]:
        cells = float(work.cells_ns[row])
        return Kernels(min(products_ns(products, TF32, gpu) + cells, recorded), other)
    return Kernels(min(products_ns(products, TF32, gpu), recorded), other, launches_of(products))


@dataclass(frozen=True, eq=False)
class StepWork:
    """The outermost operators of forward and backward, with the device work that each launches.

    Attributes:
        ahead: the operator that each differentiates, or -1; shape (operators,), as all below.
        first: whether a backward operator is the first of its forward's.
        device_ns: all kernels.
        product_ns: kernels of products, convolutions and attention, and those that prepare them.
        kernels: how many kernels.
        launches: how many operations of the device, with those that clear memory.
        replaced: whether each task is one of `product_ns`; shape (tasks,).
        cells_ns: of `product_ns`, the cells of recurrent layers.
        flops, moved: operations and bytes by the roofline; 0 if unknown.
        task: the first CPU task of each, or -1.
        kernel: the first kernel of each, or -1.
        of_task: the operator of each task of the graph, or -1; shape (tasks,).
        backward: whether it belongs to the backward pass.
        simple_call_ns: what the CPU takes for an operator of one elementwise kernel, in forward and
            in backward; shape (2,).
    """

    operators: ScriptOperators
    ahead: Ids
    first: Mask
    device_ns: Floats
    product_ns: Floats
    kernels: Ids
    launches: Ids
    replaced: Mask
    cells_ns: Floats
    flops: Floats
    moved: Floats
    task: Ids
    kernel: Ids
    of_task: Ids
    backward: Mask
    simple_call_ns: Floats

    @property
    def other_ns(self) -> Floats:
        """Kernels that multiply nothing."""
        return self.device_ns - self.product_ns

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

    def retimed(self, graph: Graph, kernels: Sequence[Kernels], added: Floats, called: Floats) -> Graph:
        """The graph with other kernels of each operator.

        Args:
            kernels: of each operator.
            added: casts, before an operator's first kernel, ns.
            called: what they cost the CPU, before its first task, ns.
        """
        multiplied, other, count, pace = (np.array(column) for column in zip(*kernels, strict=True))
        surplus = self._surplus(graph, count)
        length = graph.tasks["duration_ns"].astype(np.float64)
        works = graph.on_device & (self.of_task >= 0) & ~surplus
        for time, rows in ((multiplied, works & self.replaced), (other, works & ~self.replaced)):
            before = _sums(self.of_task[rows], length[rows], len(time))
            length[rows] *= (time / np.maximum(before, 1))[self.of_task[rows]]
        host = ~graph.on_device & (self.of_task >= 0)
        length[host] *= pace[self.of_task[host]]
        for place, extra in ((self.kernel, added), (self.task, called)):
            has = (place >= 0) & (extra > 0)
            np.add.at(length, place[has], extra[has])
        return remove(graph.with_tasks(duration_ns=np.rint(length)), surplus)

    def _surplus(self, graph: Graph, count: Ids) -> Mask:
        """Kernels beyond the count of an operator, the shortest, and what clears memory for them."""
        changed = np.append(count >= 0, False)[self.of_task]
        result = changed & graph.on_device & graph.tasks.text("category").mask("memset")
        rows = np.flatnonzero(changed & self.replaced)
        rows = rows[np.lexsort((-graph.tasks["duration_ns"][rows], self.of_task[rows]))]
        owner = self.of_task[rows]
        place = np.arange(len(rows)) - np.searchsorted(owner, owner)
        result[rows[place >= np.maximum(count[owner], 1)]] = True
        return result


def step_work(graph: Graph) -> StepWork:
    """The operators of a graph's steps, with the work of their kernels as the graph has it."""
    events = graph.trace.events
    stage = events.text("stage")
    chosen = stage.mask(*_STAGES) & np.isin(events["step"], graph.window.steps)
    operators = find_operators(graph.trace, chosen)
    count, device = len(operators.rows), graph.on_device
    event = graph.tasks["event"]
    caller = np.where(device, launch_of(graph.trace)[event], event)
    of_task = np.where((event >= 0) & (caller >= 0), np.append(operators.around, -1)[caller], -1)
    rows = np.flatnonzero(device & (of_task >= 0))
    backward = stage.mask("backward")[operators.rows]
    ahead, first = forward_rows(graph.trace, operators, backward)
    flops, moved = (np.nan_to_num(work) for work in graph.once(work_of_tasks))
    time = graph.tasks["duration_ns"]
    multiplies = _replaced(graph, of_task, count)
    kernels = _sums(of_task[rows], graph.tasks.text("category").mask("kernel")[rows], count)
    return StepWork(
        operators=operators,
        ahead=ahead,
        first=first,
        device_ns=_sums(of_task[rows], time[rows], count),
        product_ns=_sums(of_task[rows], np.where(multiplies, time, 0)[rows], count),
        kernels=kernels.astype(np.int64),
        launches=np.bincount(of_task[rows], minlength=count),
        replaced=multiplies,
        cells_ns=_sums(of_task[rows], np.where(_cells(graph), time, 0)[rows], count),
        flops=_sums(of_task[rows], flops[rows], count),
        moved=_sums(of_task[rows], moved[rows], count),
        task=_first(of_task, np.flatnonzero(~device & (of_task >= 0)), count),
        kernel=_first(of_task, rows, count),
        of_task=of_task,
        backward=backward,
        simple_call_ns=_simple_call_ns(graph, operators, of_task, (kernels == 1), backward),
    )


def of_products(work: StepWork, tasks: Mask) -> Mask:
    """Operators with a kernel among some tasks that computes products, shape (operators,)."""
    rows = tasks & work.replaced
    result: Mask = np.bincount(work.of_task[rows], minlength=len(work.operators.rows)) > 0
    return result


def _replaced(graph: Graph, of_task: Ids, count: int) -> Mask:
    """Kernels that a product in another precision does without: its own, and those of the library
    that prepare it, such as the transforms of FFT and Winograd. PyTorch's own stay."""
    product = compute_bound(graph) & (of_task >= 0)
    multiplying = np.bincount(of_task[product], minlength=count) > 0
    inside = np.append(multiplying, False)[of_task] & graph.tasks.text("category").mask("kernel")
    return inside & ~graph.tasks.text("name").where(lambda name: bool(_STAYS.search(name)))


def _cells(graph: Graph) -> Mask:
    return graph.tasks.text("name").where(lambda name: bool(_CELL.search(name)))


def _sums(group: Ids, values: Floats | Mask, count: int) -> Floats:
    return np.bincount(group, values.astype(np.float64), count).astype(np.float64)


def _first(of_task: Ids, rows: Ids, count: int) -> Ids:
    result = np.full(count, -1, np.int64)
    result[of_task[rows[::-1]]] = rows[::-1]
    return result


def _simple_call_ns(
    graph: Graph, operators: ScriptOperators, of_task: Ids, single: Mask, backward: Mask
) -> Floats:
    names = [call.name if call else "" for call in operators.calls]
    simple = np.isin(names, _SIMPLE) & single
    host = ~graph.on_device & (of_task >= 0)
    time = _sums(of_task[host], graph.tasks["duration_ns"][host], len(names))
    stages = (time[simple & ~backward], time[simple & backward])
    return np.array([float(np.median(one)) if len(one) else 0.0 for one in stages])


def changes_of_layout(call: Operator, forward: Operator | None, gpu: Gpu) -> tuple[float, int]:
    """The time and number of kernels that change layouts around a convolution in 16 bits.

    It computes with channels last: values of other layouts are changed, and changed back.
    """
    backward = call.name == "convolution_backward"
    convolution = Convolution.of(forward if backward and forward else call) if "conv" in call.name else None
    if convolution is None or convolution.channels_last:
        return 0.0, 0
    passes = 2 if backward else 1
    elements = convolution.inputs + convolution.results
    return passes * (transposing_ns(elements, gpu) + 2 * _FLOOR_NS), 2 * passes


def norm_ns(call: Operator, precision: str, rate: float) -> float:
    """The time of batch norm with channels last, by its bytes at so many per ns.

    Forward reads its input twice and writes once; backward reads two values twice and writes one.
    """
    passes = 5 if call.name.endswith("backward") else 3
    size = float(np.prod(next(iter(tensors(call)), (0,))))
    return passes * BYTES[precision] * size / rate + 2 * _FLOOR_NS


@dataclass(frozen=True, eq=False)
class _Autocast:
    """Device time of each operator under autocast.

    Attributes:
        rate: bytes per ns of this step's elementwise work.
        bfloat: whether 16 bits are bfloat16, else float16.
        longer: than predicted that products take, as a factor.
        settings: of the graph.
    """

    work: StepWork
    gpu: Gpu
    effects: list[Effect]
    rate: float
    bfloat: bool
    longer: float
    settings: frozenset[str]

    def casts(self, row: int) -> tuple[int, ...]:
        """Elements of each value that is cast at an operator."""
        effect = self.effects[row]
        return (*effect.down, *effect.up)

    def cast_ns(self, elements: int) -> float:
        """Reads a value in one precision and writes it in the other."""
        return (BYTES[SINGLE] + BYTES[HALF]) * elements / self.rate + _FLOOR_NS

    def kernels(self, row: int) -> Kernels:
        """The kernels of an operator, without its casts."""
        work, call, effect = self.work, self.work.call(row), self.effects[row]
        recorded, other = float(work.product_ns[row]), float(work.other_ns[row])
        if call is None or not self._computes_in_half(row):
            return Kernels(recorded, self._moving_ns(row, _MIXED_SUM) if effect.mixed else other)
        if call.name in NORMS and CHANNELS_LAST in self.settings:
            return Kernels(recorded, min(other, norm_ns(call, HALF, self.rate)))
        if call.name in NORMS and self.bfloat:
            return Kernels(recorded * _NATIVE_NORM, other * _NATIVE_NORM)
        if not recorded:
            return Kernels(recorded, self._moving_ns(row, 0.5))
        if "attention" in call.name:
            return Kernels(self._attention_ns(row, call), self._moving_ns(row, 0.5))
        products = work.products(row, ALIGNED_ROWS in self.settings)
        if not products:
            return Kernels(self._bytes_ns(recorded, row, 0.5), self._moving_ns(row, 0.5))
        if work.cells_ns[row]:
            return self._recurrent(row, products)
        # No library takes kernels that are slower than those of FP32.
        multiplied = min(products_ns(products, HALF, self.gpu) * self.longer, recorded)
        layouts_ns, layouts = 0.0, 0
        if CHANNELS_LAST not in self.settings:
            layouts_ns, layouts = changes_of_layout(call, work.forward_call(row), self.gpu)
        return Kernels(multiplied + layouts_ns, self._moving_ns(row, 0.5), launches_of(products) + layouts)

    def _recurrent(self, row: int, products: Sequence[Product]) -> Kernels:
        """cuDNN launches one kernel for an element of a sequence, where in FP32 it launches a
        product, its parts' sum and a cell: an LSTM on an H200, one model."""
        count = launches_of(products)
        time = products_ns(products, HALF, self.gpu) * self.longer + float(self.work.cells_ns[row])
        launches = float(self.work.launches[row])
        return Kernels(time, self._moving_ns(row, 0.5), count, min(count / max(launches, 1), 1.0))

    def _computes_in_half(self, row: int) -> bool:
        ahead = int(self.work.ahead[row])
        is_recurrent = ahead >= 0 and self.work.backward[row] and "rnn" in str(self._name(row))
        return self.effects[ahead if is_recurrent else row].half

    def _name(self, row: int) -> str:
        call = self.work.call(row)
        return call.name if call else ""

    def _attention_ns(self, row: int, call: Operator) -> float:
        """Forward reads three values and writes one; backward reads five and writes three."""
        backward = call.name not in ATTENTION
        elements = sum(np.prod(size, dtype=np.float64) for size in tensors(call))
        moved = BYTES[HALF] * elements * (8 / 5 if backward else 4 / 3)
        return attention_ns(float(self.work.flops[row]), moved, HALF, self.gpu, 1 + backward)

    def _moving_ns(self, row: int, bytes_left: float) -> float:
        """Kernels that multiply nothing, with so much of their bytes."""
        return self._bytes_ns(float(self.work.other_ns[row]), row, bytes_left)

    def _bytes_ns(self, time: float, row: int, bytes_left: float) -> float:
        """A time less what bytes are saved: what it is longer than bytes need does not shrink."""
        floor = min(time, float(self.work.kernels[row]) * _FLOOR_NS)
        if time <= floor:
            return time
        moved = float(self.work.moved[row])
        bound = min(1.0, moved / (time - floor) / self.rate) if moved else 1.0
        return floor + (time - floor) * (1 - bound * (1 - bytes_left))
