"""Which gradients a step makes: how large each is, and the task after which it is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, select, simulate
from stepscope.trace.nesting import inherit
from stepscope.whatif.shapes import call_of

Ids = NDArray[np.int64]
_ACCUMULATE = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Gradients:
    """One row a parameter (a module where parameters are not told) and step, as they get ready.

    Attributes:
        step: of which step.
        bytes: its size.
        ready: tasks.id of the task at whose end it is there: on the device, where there is one.
        module: modules.id of its module, -1 where that is not known.
    """

    step: Ids
    bytes: Ids
    ready: Ids
    module: Ids

    def take(self, rows: NDArray[np.generic]) -> Gradients:
        """Some of the rows."""
        return Gradients(self.step[rows], self.bytes[rows], self.ready[rows], self.module[rows])


def find_gradients(graph: Graph, change: str) -> Gradients:
    """The gradients of a graph's steps, in the order in which they get ready.

    By the shapes that autograd's AccumulateGrad was given; without those, by the sizes of the
    modules' own parameters and the end of their backward.

    Args:
        graph: any graph.
        change: for whom, as a refusal says it.

    Raises:
        ChangeError: if the trace tells neither.
    """
    found = _accumulated(graph)
    if not len(found.step):
        found = _of_modules(graph, change)
    end = simulate(graph).end_ns
    return found.take(np.lexsort((end[found.ready], found.step)))


def after_backward(graph: Graph, gradients: Gradients) -> dict[int, int]:
    """For each step, the first task that needs its gradients.

    It is what follows backward on the thread (the stream) on which the last gradient gets ready:
    gradient clipping or the weight update. Where nothing does, it is the end of the step.
    """
    backward = graph.tasks.text("stage").mask("backward")
    marks = np.flatnonzero(graph.tasks["mark"] > 0)
    thread, ordinary = graph.tasks["thread"], graph.on_device | (graph.threads["main"] > 0)[
        graph.tasks["thread"]
    ]  # fmt: skip
    result = {}
    for place, step in enumerate(graph.window.steps):
        mine = gradients.ready[gradients.step == step]
        if not len(mine):
            continue
        here = thread == thread[mine[-1]]
        last = int(np.flatnonzero(backward & here & (graph.tasks["step"] == step))[-1])
        follows = last + 1 < len(graph) and thread[last + 1] == thread[last]
        result[step] = last + 1 if follows and ordinary[last + 1] else int(marks[place + 1])
    return result


def _accumulated(graph: Graph) -> Gradients:
    events, tasks = graph.trace.events, graph.tasks
    is_one = events.text("name").mask(_ACCUMULATE)
    inner = np.append(inherit(events["parent"], np.where(is_one, events["id"], -1)), -1)
    owner = np.where(graph.on_device, -1, inner[tasks["event"]])
    rows = np.flatnonzero(owner >= 0)
    _, place = np.unique(owner[rows][::-1], return_index=True)
    ends = np.sort(rows[::-1][place])
    size = np.array([_bytes(graph, int(owner[task])) for task in ends], np.int64)
    ready = _last_launched(graph, ends) if graph.on_device.any() else ends
    known = (size > 0) & (ready >= 0)
    return Gradients(
        tasks["step"][ends][known].astype(np.int64), size[known], ready[known],
        tasks["module"][ends][known].astype(np.int64),
    )  # fmt: skip


def _bytes(graph: Graph, event: int) -> int:
    tensor = call_of(graph.trace, event).tensor(0)
    return tensor.bytes if tensor else 0


def _last_launched(graph: Graph, calls: Ids) -> Ids:
    """For each CPU task, the last work that computes and was launched before its end; -1 if none.

    Launched by the same thread.
    """
    launch = graph.links.text("kind").mask("launch")
    source, target = graph.links["source"][launch], graph.links["target"][launch]
    computes = ~graph.tasks.text("category").mask("communication")[target]
    source, target = source[computes], target[computes]
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    place = np.searchsorted(source, calls, side="right") - 1
    safe = np.maximum(place, 0)
    thread = graph.tasks["thread"]
    if not len(source):
        return np.full(len(calls), -1, np.int64)
    same = (place >= 0) & (thread[source[safe]] == thread[calls])
    return np.where(same, target[safe], -1).astype(np.int64)


def _of_modules(graph: Graph, change: str) -> Gradients:
    sizes = _own_bytes(graph, change)
    backward = select(graph, stage="backward", on_device=bool(graph.on_device.any()))
    rows = np.flatnonzero(backward & (np.append(sizes, 0)[graph.tasks["module"]] > 0))
    if not len(rows):
        raise ChangeError(f"{change}: no backward work is known to belong to a module with "
                          "parameters")  # fmt: skip
    end = simulate(graph).end_ns
    step, module = graph.tasks["step"][rows], graph.tasks["module"][rows]
    order = np.lexsort((end[rows], module, step))
    last = np.append((np.diff(module[order]) != 0) | (np.diff(step[order]) != 0), True)
    rows = rows[order][last]
    parts = [_every_module(graph, rows[graph.tasks["step"][rows] == one], sizes)
             for one in np.unique(step).tolist()]  # fmt: skip
    ready, module = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    return Gradients(graph.tasks["step"][ready].astype(np.int64), sizes[module], ready, module)


def _every_module(graph: Graph, ends: Ids, sizes: Ids) -> tuple[Ids, Ids]:
    """For each module with parameters the task with which its backward ends, and the module.

    One whose backward is not known is ready with the module registered before it, whose backward
    comes later.
    """
    known = graph.tasks["module"][ends]
    modules = np.flatnonzero(sizes > 0)
    before = np.searchsorted(known, modules, side="right") - 1
    return ends[np.maximum(before, 0)], modules


def _own_bytes(graph: Graph, change: str) -> Ids:
    """Bytes of each module's own parameters."""
    modules = graph.trace["modules"]
    size = np.maximum(modules["parameter_bytes"], 0)
    inner = modules["parent"] >= 0
    below = np.bincount(modules["parent"][inner], size[inner], len(modules)).astype(np.int64)
    own: Ids = size - below
    if not (own > 0).any():
        raise ChangeError(
            f"{change}: the trace tells neither the shapes of gradients nor the sizes "
            "of parameters; record it with `stepscope run`"
        )
    return own
