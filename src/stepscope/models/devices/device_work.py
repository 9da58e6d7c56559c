"""The work that the operators of a CPU step would give to a device."""

import re
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.jax.calls import calls_of_host_work, is_wait
from stepscope.facts.roofline.formulas import call_of
from stepscope.facts.roofline.operator_work import PRODUCTS, Operators
from stepscope.facts.roofline.rates import precisions
from stepscope.graph import Graph, add_links, add_thread, append
from stepscope.models.whatif.parts.kernel_times import FIXED_NS, Rates, peak_rate
from stepscope.trace.nesting import inherit, totals_inside
from stepscope.trace.row_order import inverse, places_among
from stepscope.trace.schema import KERNEL_KINDS, PASS_STAGES
from stepscope.trace.table import Text

TRAINING = (*PASS_STAGES, "optimizer", "zero_grad")
BATCHED = ("optimizer", "zero_grad")
_LEAST_KNOWN = 0.5  # share of the step's time; of less, most of a prediction would be a guess
_SAME_WORK = 0.5  # share of the work of the operator around it
_DISPATCH_NS = 20_000  # of an operator that computes nothing
_MOST_NS_PER_BYTE = 10.0  # a tenth of a GB a second, far less than any operator's
_COMPUTES_NOTHING = re.compile(r"^(torch::)?autograd::|Backward\d+$|^stepscope\.")
_OPERATIONS_PER_BYTE = 20  # that take a device about as long
_RUNS = "ThunkExecutor::"  # XLA's, on a CPU
_CONVOLUTION = KERNEL_KINDS.index("convolution")


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels in the order of their launches, arrays of shape (kernels,)."""

    task: Ids  # tasks.id of the last task of its operator
    launch: Ids  # tasks.id of its launch: the same, or in JAX the call of its program
    event: Ids  # events.id of its operator; the first, if one kernel serves several
    # flops, bytes: float64.
    flops: Floats
    bytes: Floats
    precision: Text  # of products: `half`, `tf32` or `fp32`
    kind: Ids  # position in KERNEL_KINDS
    known: float  # share of the training stages' CPU time whose work is known


def training_tasks(graph: Graph) -> Mask:
    """Tasks of the stages whose tensors would be on the device."""
    return np.asarray(graph.tasks.text("stage").mask(*TRAINING) & (graph.tasks["mark"] == 0))


def replaced_tasks(graph: Graph) -> Mask:
    """Tasks of work that would be on the device: training, and what XLA's threads do for it.

    XLA's threads run programs, start and meet each other, and the loop waits for them.
    """
    event, tasks = graph.tasks["event"], graph.tasks
    names = graph.trace.events.text("name")
    compiled = np.append(graph.trace.events["scope"] >= 0, False)[event]
    if not compiled.any():
        return training_tasks(graph)
    own = np.isin(tasks["thread"], np.unique(tasks["thread"][compiled]))
    own &= graph.threads["main"][tasks["thread"]] == 0
    waits = np.append(names.where(lambda name: is_wait(name) or name.startswith(_RUNS)), False)
    return np.asarray(training_tasks(graph) | ((own | waits[event]) & (tasks["mark"] == 0)))


def find_device_work(graph: Graph) -> LaunchedKernels:
    """The operators of known work in a graph without device work, as kernels; raises ChangeError if
    the work of half of the time or more is unknown.

    The weight update's operators of one name are one kernel, as PyTorch batches them on devices (`foreach`).
    """
    events, operators = graph.trace.events, Operators.of(graph.trace)
    workers = _workers(graph, operators)
    owner = inherit(events["parent"], workers)
    task_owner = np.where(training_tasks(graph), np.append(owner, -1)[graph.tasks["event"]], -1)
    around = totals_inside(events["parent"], (workers >= 0).astype(np.int64)) > 0
    known = _known_share(graph, task_owner >= 0, around)
    if known < _LEAST_KNOWN:
        raise ChangeError(
            f"the operations of {1 - known:.0%} of the step are not known, so its time on another "
            "device cannot be predicted"
        )
    rows = np.flatnonzero(task_owner >= 0)
    event, last = np.unique(task_owner[rows][::-1], return_index=True)
    task = rows[::-1][last]
    order = np.argsort(events["start_ns"][event], kind="stable")
    event, task = event[order], task[order]
    group, first = _kernels(graph, event, task)
    flops, size = (
        np.bincount(group, np.nan_to_num(values[event]), len(first)).astype(np.float64)
        for values in (operators.flops, operators.bytes)
    )
    event, task = event[first], task[first]
    names, kind = events.text("name").take(event), events["kind"][event]
    precision = precisions(names, operators.width[event].astype(np.int64))
    return LaunchedKernels(task, _launches(graph, event, task), event, flops, size, precision, kind, known)


def _launches(graph: Graph, event: Ids, task: Ids) -> Ids:
    """The task that launches each operator: the call of its program, if it has one; else itself."""
    call = calls_of_host_work(graph.trace)[event].astype(np.int64)
    first = places_among(graph.tasks["event"], call)
    return np.where((call >= 0) & (first >= 0), first, task)


def _workers(graph: Graph, operators: Operators) -> Ids:
    """The event itself for operators that do known work themselves, else -1.

    An operator with an operator of about its own work inside, as `linear` around `addmm`, does
    none; one with a smaller operator inside, as `addmm` around the copy of its bias, does.
    """
    events = graph.trace.events
    rows = events["id"].astype(np.int64)
    around = operators.of_work(rows, np.full(len(rows), -1))
    known = np.flatnonzero(around == rows)
    cost = np.fmax(operators.flops / _OPERATIONS_PER_BYTE, operators.bytes)[known]
    outer = np.append(around, -1)[events["parent"][known]]
    inside = np.zeros(len(rows))
    np.maximum.at(inside, outer[outer >= 0], cost[outer >= 0])
    works = known[inside[known] < _SAME_WORK * cost]
    found = np.full(len(rows), -1, np.int64)
    found[works] = works
    return found


def _kernels(graph: Graph, event: Ids, task: Ids) -> tuple[Ids, Ids]:
    """The kernel of each operator, and the first operator of each kernel, in launch order."""
    stage = graph.tasks.text("stage").take(task)
    name = graph.trace.events["name"][event].astype(np.int64)
    step = graph.tasks["step"][task].astype(np.int64)
    alone = -1 - np.arange(len(event))
    key = np.where(stage.mask(*BATCHED), name * (step.max(initial=0) + 1) + step, alone)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return inverse(order)[group.ravel()], first[order]


def _known_share(graph: Graph, known: Mask, outer: Mask) -> float:
    """Share of the operators' time that is known.

    What operators around others take themselves does not count, nor what their inputs cannot
    account for: dispatching, and other programs that ran meanwhile.
    """
    events = graph.trace.events
    event, time = graph.tasks["event"], graph.tasks["duration_ns"].astype(np.float64)
    computes = events.text("category").mask("cpu_op") & ~outer
    computes &= ~events.text("name").where(lambda name: bool(_COMPUTES_NOTHING.search(name)))
    unknown = training_tasks(graph) & np.append(computes, False)[event] & ~known
    other = np.bincount(event[unknown], time[unknown], len(events)) - _DISPATCH_NS
    lost = 0.0
    for row in np.flatnonzero(other > 0).tolist():
        tensors = [tensor for several in call_of(graph.trace, row).inputs for tensor in several]
        most = sum(tensor.bytes for tensor in tensors) * _MOST_NS_PER_BYTE if tensors else inf
        lost += min(other[row], most)
    return float(time[known].sum() / max(time[known].sum() + lost, 1.0))


EFFICIENCY = 0.5  # of the peak rates, for products and for memory
COUNTING_ERROR = 1.7  # devices took at most so many times as long or as short
_TF32_SINCE = 8  # compute capability


class OffloadEstimate(NamedTuple):
    """How fast to assume the device and the CPU that launches its work."""

    longer: float
    launch_ns: int


TYPICAL = OffloadEstimate(1.0, 10_000)
FAST = OffloadEstimate(1 / COUNTING_ERROR, 5_000)
SLOW = OffloadEstimate(COUNTING_ERROR, 40_000)


def offload(graph: Graph, rates: Rates, samples: float = 1.0, estimate: OffloadEstimate = TYPICAL) -> Graph:
    """The same steps with the work of the training stages on a device; raises ChangeError if the
    operations of half of the step or more are unknown.

    Stages on the CPU, such as loading data, take as long as they did.
    """
    work = find_device_work(graph)
    stage = graph.tasks.text("stage").take(work.task)
    growth = np.where(stage.mask(*PASS_STAGES), samples, 1.0)
    time = kernels_ns(work, rates, growth) * estimate.longer / work.known
    names = [str(name) for name in graph.trace.events.text("name").take(work.event)]
    host = _with_launches(graph, work, samples, estimate.launch_ns)
    host, stream = add_thread(host, str(rates["name"]), "device", 0)
    moved, kernels = append(
        host,
        stream,
        names,
        duration_ns=np.rint(time).astype(np.int64),
        category="kernel",
        kind=graph.trace.events.text("kind").take(work.event),
        stage=stage,
        step=graph.tasks["step"][work.task].astype(np.int64),
        module=graph.tasks["module"][work.task].astype(np.int64),
    )
    # The stream is the last thread, so the ids of all other tasks are unchanged.
    return add_links(moved, work.launch, kernels, "launch", estimate.launch_ns)


def kernels_ns(work: LaunchedKernels, rates: Rates, growth: Floats) -> Floats:
    computing = work.flops / (_peaks(work, rates) * 1e3)
    moving = work.bytes / float(rates["bandwidth"])
    return np.asarray(FIXED_NS + growth * np.maximum(computing, moving) / EFFICIENCY, np.float64)


def _peaks(work: LaunchedKernels, rates: Rates) -> Floats:
    """TFLOPS for each kernel; convolutions use TF32 where PyTorch's default does."""
    peak, product = np.full(len(work.flops), float(rates["fp32"])), np.isin(work.kind, PRODUCTS)
    for name in ("half", "tf32"):
        peak[product & work.precision.mask(name)] = peak_rate(rates, name)
    if int(rates.get("major") or 0) >= _TF32_SINCE:
        convolution = (work.kind == _CONVOLUTION) & work.precision.mask("fp32")
        peak[convolution] = peak_rate(rates, "tf32")
    return peak


def _with_launches(graph: Graph, work: LaunchedKernels, samples: float, launch_ns: int) -> Graph:
    """The CPU's tasks: launches in the training stages, the others as they were."""
    training = replaced_tasks(graph)
    loading = np.where(graph.tasks.text("stage").mask("data_loading"), samples, 1.0)
    duration = np.where(training, 0, np.rint(graph.tasks["duration_ns"] * loading))
    duration[work.launch] = np.maximum(duration[work.launch], launch_ns)
    gap = np.where(training, 0, graph.tasks["gap_ns"])
    return graph.with_tasks(duration_ns=duration.astype(np.int64), gap_ns=gap)
