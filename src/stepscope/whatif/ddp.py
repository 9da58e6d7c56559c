"""`ddp`: what if the model were trained by several workers, each with the batch of this one?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, add_thread, append, select

_FIRST_BUCKET = 1 << 20  # torch.distributed's own defaults
_BUCKET = 25 << 20


def ddp(
    graph: Graph, workers: int = 2, bandwidth_gbps: float = 10.0, latency_us: float = 20.0
) -> Graph:
    """Distributed data parallel: gradients are all-reduced in buckets while backward goes on.

    Args:
        graph: of a training step of one worker.
        workers: how many there are then.
        bandwidth_gbps: of each worker's link, Gbit/s.
        latency_us: of each of the ring's steps.

    Raises:
        ChangeError: if the sizes of the parameters or their backward work are not known, or the
            steps communicate already.

    Source: DAYDREAM section 5.1, algorithm 6; all-reduce time of a ring as in nccl-tests,
    PERFORMANCE.md: 2 (n - 1) / n of the bytes over the bandwidth.
    """
    if workers < 2 or bandwidth_gbps <= 0 or latency_us < 0:
        raise ChangeError("ddp: expected at least 2 workers, a bandwidth above 0 and no latency "
                          f"below 0; found {workers}, {bandwidth_gbps}, {latency_us}")  # fmt: skip
    if select(graph, category="communication").any():
        raise ChangeError("ddp: these steps communicate already")
    gradients = _gradients(graph)
    graph, channel = add_thread(graph, "all-reduce", "communication", _device(graph))
    for step in graph.window.steps:
        ready = _last_backward(graph, step, list(gradients))
        buckets = _buckets(sorted(ready, key=lambda module: ready[module]), gradients)
        sizes = np.array([sum(gradients[module] for module in bucket) for bucket in buckets])
        ends = np.array([max(ready[module] for module in bucket) for bucket in buckets])
        share, hops = 2 * (workers - 1) / workers, 2 * (workers - 1)
        time = share * sizes * 8 / bandwidth_gbps + hops * latency_us * 1e3
        graph = _with_all_reduces(graph, channel, step, ends, sizes, time)
    return graph


def _gradients(graph: Graph) -> dict[int, int]:
    """Bytes of each module's own parameters."""
    modules = graph.trace["modules"]
    size = np.maximum(modules["parameter_bytes"], 0)
    inner = modules["parent"] >= 0
    own = size - np.bincount(modules["parent"][inner], size[inner], len(modules)).astype(np.int64)
    if not (own > 0).any():
        raise ChangeError("ddp: the trace does not tell the sizes of the parameters; "
                          "record it with `stepscope run`")  # fmt: skip
    return {int(module): int(own[module]) for module in np.flatnonzero(own > 0)}


def _last_backward(graph: Graph, step: int, modules: list[int]) -> dict[int, int]:
    """The task with which each module's backward ends: on the device, where there is one."""
    backward = select(graph, stage="backward", on_device=bool(graph.on_device.any()))
    rows = np.flatnonzero(backward & (graph.tasks["step"] == step))
    last = {int(graph.tasks["module"][row]): int(row) for row in rows}
    found = {module: last[module] for module in modules if module in last}
    if not found:
        raise ChangeError("ddp: no backward work is known to belong to a module with parameters")
    return found


def _buckets(order: list[int], sizes: dict[int, int]) -> list[list[int]]:
    """Modules in the order in which their gradients are ready, put together up to the cap."""
    buckets: list[list[int]] = []
    room = 0
    for module in order:
        if not buckets or room <= 0:
            buckets.append([])
            room = _FIRST_BUCKET if len(buckets) == 1 else _BUCKET
        buckets[-1].append(module)
        room -= sizes[module]
    return buckets


def _with_all_reduces(
    graph: Graph, channel: int, step: int, ends: NDArray[np.int64], sizes: NDArray[np.int64],
    time_ns: NDArray[np.float64],
) -> Graph:  # fmt: skip
    names = [f"all-reduce {number}" for number in range(len(ends))]
    graph, new = append(
        graph, channel, names, duration_ns=np.rint(time_ns), bytes=sizes, step=step,
        category="communication", kind="communication", stage="backward",
    )  # fmt: skip
    graph = add_links(graph, ends, new, "communication")
    return add_links(graph, new, np.full(len(new), _update(graph, step)), "communication")


def _update(graph: Graph, step: int) -> int:
    """The first task that needs the gradients: of the optimizer, else where the step ends."""
    device = bool(graph.on_device.any())
    update = select(graph, stage="optimizer", on_device=device) & (graph.tasks["step"] == step)
    update &= graph.tasks["mark"] == 0
    if update.any():
        return int(np.argmax(update))
    marks = np.flatnonzero(graph.tasks["mark"] > 0)
    return int(marks[graph.window.steps.index(step) + 1])


def _device(graph: Graph) -> int:
    return int(graph.threads["device"].max(initial=-1))
