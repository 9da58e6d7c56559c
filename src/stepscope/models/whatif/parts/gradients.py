"""The gradients of a step: their sizes, when they are ready, where their parameters are used."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Floats, Ids, Ids32, Times
from stepscope.errors import ChangeError
from stepscope.graph import (
    Graph,
    add_links,
    inherited,
    insert,
    last_on_thread,
    numbers_after,
    redirect,
    select,
    simulate,
)
from stepscope.models.whatif.cpu.calibrated import copy_rate, on_cpu
from stepscope.models.whatif.parts.layers import (
    add_channel,
    first_of,
    in_backward,
    input_bytes,
    operators,
    step_ends,
    working,
)
from stepscope.models.whatif.parts.network import append_collectives, time_factor
from stepscope.trace.columns import ParallelArrays
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import ends_run
from stepscope.trace.sets import distinct_rows

_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True, eq=False)
class Gradients(ParallelArrays):
    """One row per parameter (or module, if parameters are not recorded) and step, by readiness."""

    step: Ids  # one of the graph's window
    bytes: Ids
    ready: Ids  # tasks.id of the task at whose end it is ready: on the device, if there is one
    module: Ids  # modules.id of its module, -1 if unknown
    used: Ids  # tasks.id of the first task of the step that uses the parameter in forward, or -1
    begun: Ids  # tasks.id of the first task that uses it in backward, or -1
    # its backward pass, numbered over all steps; a step that updates weights in between has several
    backward: Ids


def find_gradients(graph: Graph, change: str) -> Gradients:
    """The gradients of a graph's steps, in the order in which they get ready.

    From the input shapes of autograd's AccumulateGrad; without those, from the sizes of the
    modules' own parameters and the end of their backward.
    """
    found = _accumulated(graph)
    if not len(found.step):
        found = _of_modules(graph, change)
    backward = distinct_rows(found.step, _updates_before(graph)[found.ready])[1]
    return replace(found, backward=backward).take(np.lexsort((simulate(graph).end_ns[found.ready], backward)))


def _updates_before(graph: Graph) -> Ids:
    """How many tasks of weight updates begin before each task."""
    start = simulate(graph).start_ns
    updates = working(graph) & graph.tasks.text("stage").mask("optimizer")
    return np.searchsorted(np.sort(start[updates]), start)


def after_backward(graph: Graph, gradients: Gradients) -> dict[int, int]:
    """The first task after each backward pass that needs its gradients.

    It follows backward on the thread or stream on which the last gradient gets ready: gradient
    clipping or the weight update. If nothing follows, it is the end of the step.
    """
    backward, thread = in_backward(graph), graph.tasks["thread"]
    serves = graph.on_device | (graph.threads["main"] > 0)[thread]
    ends, updates = step_ends(graph), _updates_before(graph)
    result = {}
    for last in np.flatnonzero(ends_run(gradients.backward)).tolist():
        ready, step = gradients.ready[last], int(gradients.step[last])
        here = backward & (thread == thread[ready]) & (graph.tasks["step"] == step)
        here &= updates == updates[ready]
        after = int(np.flatnonzero(here)[-1]) + 1
        follows = after < len(graph) and thread[after] == thread[after - 1] and serves[after]
        result[int(gradients.backward[last])] = after if follows else ends[step]
    return result


def _accumulated(graph: Graph) -> Gradients:
    events, tasks = graph.trace.events, graph.tasks
    accumulator = inherited(graph, np.where(events.text("name").mask(_ACCUMULATE), events["id"], -1))
    owner = np.where(graph.on_device, -1, accumulator)
    rows = np.flatnonzero(owner >= 0)
    _, place = np.unique(owner[rows][::-1], return_index=True)
    ends = np.sort(rows[::-1][place])
    size = np.array([input_bytes(graph, int(owner[task])) for task in ends], np.int64)
    ready = _last_launched(graph, ends) if graph.on_device.any() else ends
    known = (size > 0) & (ready >= 0)
    ends, size, ready = ends[known], size[known], ready[known]
    used, begun = _uses(graph, operators(graph), _operator_before(graph, ends))
    module, step = (tasks[name][ends].astype(np.int64) for name in ("module", "step"))
    return Gradients(step, size, ready, module, used, begun, step)


def _operator_before(graph: Graph, ends: Ids) -> Ids:
    """The operator whose backward computed each gradient: the last before it on its thread."""
    operator = operators(graph)
    return np.append(operator, -1)[last_on_thread(graph, operator >= 0, ends)]


def _last_launched(graph: Graph, calls: Ids) -> Ids:
    """The last device work that the thread of each CPU task launched by its end, or -1."""
    source, target = graph.launches["source"], graph.launches["target"]
    computes = ~graph.tasks.text("category").mask("communication")[target]
    last = np.full(len(graph) + 1, -1, np.int64)
    np.maximum.at(last, source[computes], target[computes].astype(np.int64))
    return last[last_on_thread(graph, last[:-1] >= 0, calls)]


def _uses(graph: Graph, keys: Ids, wanted: Ids) -> tuple[Ids, Ids]:
    """The first tasks with a wanted key, in forward and in backward."""
    works, backward = working(graph), in_backward(graph)
    forward = graph.tasks.text("stage").mask("forward", "loss")
    return (
        first_of(keys, np.flatnonzero(works & forward), wanted),
        first_of(keys, np.flatnonzero(works & backward), wanted),
    )


def _of_modules(graph: Graph, change: str) -> Gradients:
    own = _own_bytes(graph, change)
    backward = select(graph, stage="backward", on_device=bool(graph.on_device.any()))
    backward &= np.isin(graph.tasks["step"], graph.window.steps)
    rows = np.flatnonzero(backward & (np.append(own, 0)[graph.tasks["module"]] > 0))
    if not len(rows):
        raise ChangeError(f"{change}: no backward work belongs to a module with parameters")
    end = simulate(graph).end_ns
    step, module = graph.tasks["step"][rows], graph.tasks["module"][rows]
    order = np.lexsort((end[rows], module, step))
    rows = rows[order][ends_run(module[order]) | ends_run(step[order])]
    with_parameters = np.flatnonzero(own > 0)
    by_step = []
    for number in np.unique(step).tolist():
        ends = rows[graph.tasks["step"][rows] == number]
        # A module without known backward is ready with the module registered before it, whose
        # backward comes later.
        before = np.searchsorted(graph.tasks["module"][ends], with_parameters, side="right") - 1
        by_step.append(ends[np.maximum(before, 0)])
    sizes = shared_once(graph.trace["modules"]["parent"], own, with_parameters, end[by_step[0]])
    kept = sizes[with_parameters] > 0
    module, ready = np.tile(with_parameters[kept], len(by_step)), np.concatenate([x[kept] for x in by_step])
    step = graph.tasks["step"][ready].astype(np.int64)
    used, begun = _uses(
        graph, _in_step(graph, graph.tasks["module"], graph.tasks["step"]), _in_step(graph, module, step)
    )
    return Gradients(step, sizes[module], ready, module, used, begun, step)


def shared_once(parent: Ids32, own: Ids, modules: Ids, ready_ns: Times) -> Ids:
    """The bytes of the modules' own parameters, with one that several share at that which is ready last.

    A module around them counts it once, so that it has fewer bytes than its parts.
    """
    own, ready = own.copy(), np.zeros(len(own), np.int64)
    ready[modules] = ready_ns
    for around in np.flatnonzero(own < 0)[::-1].tolist():
        part = inherit(parent, np.where(parent == around, np.arange(len(own)), -1).astype(np.int32))
        inside = np.flatnonzero((part >= 0) & (own > 0))
        for size in [*np.unique(own[inside])[::-1].tolist(), int(-own[around])]:
            holders = inside[np.argsort(own[inside], kind="stable")]
            holders = holders[own[holders] >= size]
            holders = holders[np.sort(np.unique(part[holders], return_index=True)[1])]
            sharing = holders[: 1 - own[around] // size]
            if own[around] == size * (1 - len(sharing)):
                own[np.delete(sharing, ready[sharing].argmax())] -= size
                break
    return own


def _in_step(graph: Graph, module: ArrayLike, step: ArrayLike) -> Ids:
    """A number for each module and step, -1 for no module."""
    module, step = np.asarray(module, np.int64), np.asarray(step, np.int64)
    return np.where(module >= 0, step * len(graph.trace["modules"]) + module, -1)


def _own_bytes(graph: Graph, change: str) -> Ids:
    modules = graph.trace["modules"]
    size = np.maximum(modules["parameter_bytes"], 0)
    inner = modules["parent"] >= 0
    own: Ids = size - np.bincount(modules["parent"][inner], size[inner], len(modules)).astype(np.int64)
    if not (own > 0).any():
        raise ChangeError(
            f"{change}: the trace has neither the shapes of gradients nor the sizes of parameters; "
            "record it with `stepscope run`"
        )
    return own


Consumers = dict[int, int]
MIB = 1 << 20  # bytes
_CAP, _FIRST_CAP = 25 * MIB, MIB  # bytes; torch.nn.parallel.DistributedDataParallel, where no cap is given


def buckets_of(gradients: Gradients, cap: float) -> Ids:
    """The bucket of each gradient, numbered over all steps.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size;
    torch/nn/parallel/distributed.py, first_bucket_bytes_cap.
    """
    return filled(gradients.backward, gradients.bytes, cap, _FIRST_CAP if cap == _CAP else cap)


def filled(turn: Ids, size: Ids, cap: float, first: float) -> Ids:
    """The bucket of each tensor: one is closed once it has reached its limit (bytes; that of the
    first of a turn, such as a step, is `first`), or its turn ends."""
    result, number, room, current = [], -1, 0.0, None
    for of_turn, bytes_ in zip(turn.tolist(), size.tolist(), strict=True):
        if of_turn != current or room <= 0:
            room = cap if of_turn == current else first
            number, current = number + 1, of_turn
        result.append(number)
        room -= bytes_
    return np.array(result, np.int64)


def with_bucket_copies(graph: Graph, gradients: Gradients) -> tuple[Graph, Gradients, Consumers]:
    """Copy each gradient to its bucket on the CPU, and all of them back before they are used: the
    graph, the gradients as ready in their buckets, and their consumers (`after_backward`).

    Copies take no time if their rate is unknown, and on devices, whose memory is much faster than
    the network.

    Source: PyTorch, reducer.cpp, mark_variable_ready_dense and finalize_bucket_dense.
    """
    consumers = after_backward(graph, gradients)
    total = np.bincount(gradients.backward, gradients.bytes)
    rate = None if graph.on_device.any() else copy_rate(graph, total.max(initial=0))
    if rate is None:
        return graph, gradients, consumers
    graph, copied = insert(
        graph,
        gradients.ready,
        ["gradient to bucket"] * len(gradients.ready),
        duration_ns=np.rint(gradients.bytes / rate),
    )
    needs = numbers_after(len(graph), copied)[list(consumers.values())]
    graph, fetched = insert(
        graph,
        needs,
        ["gradients from buckets"] * len(needs),
        in_front=True,
        stage="backward",
        step=gradients.step[ends_run(gradients.backward)],
        duration_ns=np.rint(total / rate),
    )
    ready = numbers_after(len(graph), fetched)[copied]
    return (graph, replace(gradients, ready=ready), dict(zip(consumers, fetched.tolist(), strict=True)))


TimeOf = Callable[[Ids], Floats]  # by sizes, bytes, in ns


def with_buckets_sent(
    graph: Graph, gradients: Gradients, consumers: Consumers, cap: float, name: str, time_ns: TimeOf
) -> Graph:
    """Send the buckets of `cap` bytes one after the other by a collective, each once it is full."""
    bucket = buckets_of(gradients, cap)
    graph, channel = add_channel(graph, name, ordered=True)
    ends = ends_run(bucket)
    step, size = gradients.step[ends], np.bincount(bucket, gradients.bytes)
    names, time = [f"{name} {number}" for number in range(len(size))], time_ns(size)
    graph, new = append_collectives(graph, channel, names, time, bytes=size, step=step, stage="backward")
    graph = add_links(graph, gradients.ready, new[bucket], "communication")
    needs = [consumers[number] for number in gradients.backward[ends].tolist()]
    return add_links(graph, new, needs, "communication")


def converted(
    graph: Graph, tasks: Ids, sent: tuple[float, float], names: tuple[str, str], ns: tuple[Floats, Floats]
) -> Graph:
    """All-reduces that send part of their bytes, with a conversion before and after each.

    On a device both are kernels that run concurrently with the computation. On a CPU the thread
    that filled a bucket converts it; the conversions back run on a thread of their own.

    Args:
        tasks: the all-reduces, tasks.id, shape (n,).
        sent: the part of the bytes, and the fixed cost as in `time_factor`, us.
        ns: how long the conversions take, shape (n,).
    """
    kernel: dict[str, Any] = {"category": "kernel", "kind": "elementwise"}
    count = len(tasks)
    length, size = graph.tasks["duration_ns"].copy(), graph.tasks["bytes"].copy()
    length[tasks] = np.rint(length[tasks] * time_factor(graph, tasks, *sent))
    size[tasks] = np.rint(size[tasks] * sent[0])
    graph = graph.with_tasks(duration_ns=length, bytes=size)
    if on_cpu(graph):
        graph, tasks = _after_filling(graph, tasks, names[0], ns[0])
    else:
        graph, new = insert(
            graph, tasks, [names[0]] * count, in_front=True, duration_ns=np.rint(ns[0]), **kernel
        )
        tasks = numbers_after(len(graph), new)[tasks]
    graph, last = insert(graph, tasks, [names[1]] * count, duration_ns=np.rint(ns[1]), **kernel)
    return redirect(graph, numbers_after(len(graph), last)[tasks], last)


def _after_filling(graph: Graph, tasks: Ids, name: str, time: Floats) -> tuple[Graph, Ids]:
    """Add work on a CPU between the last task that each all-reduce waits for and the all-reduce.

    One that waits for nothing gets no work. Returns the graph, and the all-reduces in it.
    """
    links = graph.links
    last = np.full(len(graph), -1, np.int64)
    np.maximum.at(last, links["target"], links["source"].astype(np.int64))
    known = np.flatnonzero(last[tasks] >= 0)
    graph, new = insert(
        graph,
        last[tasks][known],
        [name] * len(known),
        duration_ns=np.rint(time[known]),
        category="cpu_op",
        kind="elementwise",
    )
    tasks = numbers_after(len(graph), new)[tasks]
    return add_links(graph, new, tasks[known], "communication"), tasks
