"""Which tasks belong to which forward operator, in forward and in backward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.graph import Graph, add_thread, simulate
from stepscope.trace.nesting import inherit

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


def operators(graph: Graph) -> Ids:
    """For each task the forward operator (events.id) of which it does a part, or -1.

    In forward it is the innermost operator around it, or around its launch, that has a backward; in
    backward the operator whose backward it is.
    """
    trace = graph.trace
    forward = trace.events["forward_event"]
    own = forward.astype(np.int64)
    told = forward[forward >= 0]
    own[told] = np.where(own[told] < 0, told, own[told])
    inner = inherit(trace.events["parent"], own).astype(np.int64)
    launches = trace["launches"]
    inner[launches["device_event"]] = inner[launches["cpu_event"]]
    result: Ids = np.append(inner, -1)[graph.tasks["event"]]
    return result


def working(graph: Graph) -> Mask:
    """Tasks that do the work: on devices, where there are any, else on the CPU."""
    works = graph.on_device & ~graph.tasks.text("category").mask("communication")
    return works if works.any() else graph.tasks["mark"] == 0


def in_backward(graph: Graph) -> Mask:
    """Tasks of backward."""
    return graph.tasks.text("stage").mask("backward")


def step_ends(graph: Graph) -> dict[int, int]:
    """For each step the task that marks its end."""
    marks = np.flatnonzero(graph.tasks["mark"] > 0).tolist()
    return dict(zip(graph.window.steps, marks[1:], strict=True))


def begins_next(graph: Graph) -> dict[int, int]:
    """For each step the task with which the next one's forward begins; the last one's end.

    Forward begins on the device, where there is one; else where the step ends.
    """
    result = step_ends(graph)
    if not graph.on_device.any():
        return result
    forward = working(graph) & graph.tasks.text("stage").mask("forward")
    rows = np.flatnonzero(forward)
    rows = rows[np.argsort(simulate(graph).start_ns[rows], kind="stable")]
    steps, first = np.unique(graph.tasks["step"][rows], return_index=True)
    begins = dict(zip(steps.tolist(), rows[first].tolist(), strict=True))
    for step, following in zip(graph.window.steps, graph.window.steps[1:], strict=False):
        result[step] = begins.get(following, result[step])
    return result


def last_updates(graph: Graph) -> dict[int, int]:
    """For each step the last task of its weight update that works."""
    rows = np.flatnonzero(working(graph) & graph.tasks.text("stage").mask("optimizer"))
    rows = rows[np.argsort(simulate(graph).end_ns[rows], kind="stable")]
    return dict(zip(graph.tasks["step"][rows].tolist(), rows.tolist(), strict=True))


def add_channel(graph: Graph, name: str, ordered: bool = False) -> tuple[Graph, int]:
    """A graph with a further communication channel, of the device that works, and its number."""
    device = int(graph.threads["device"].max(initial=-1))
    return add_thread(graph, name, "communication", device, ordered)


def first_of(keys: Ids, rows: Ids, wanted: Ids) -> Ids:
    """For each wanted key the first of `rows` (sorted) that has it, or -1.

    Args:
        keys: of every task, shape (tasks,).
        rows: the tasks that count.
        wanted: keys, -1 for none.
    """
    found, place = np.unique(keys[rows], return_index=True)
    index = np.searchsorted(found, wanted)
    safe = np.minimum(index, max(len(found) - 1, 0))
    if not len(found):
        return np.full(len(wanted), -1, np.int64)
    same = (found[safe] == wanted) & (wanted >= 0)
    return np.where(same, rows[place[safe]], -1)
