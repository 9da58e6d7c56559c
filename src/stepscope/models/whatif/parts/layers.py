"""The tasks of each forward operator, in forward and in backward, and those of optimizers."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.roofline.formulas import call_of
from stepscope.graph import Graph, add_thread, inherited, last_on_thread, scale, select, simulate
from stepscope.trace import nesting
from stepscope.trace.columns import ParallelArrays
from stepscope.trace.row_order import places_among


def operators(graph: Graph) -> Ids:
    """The forward operator (events.id) to which each task belongs, or -1.

    In forward it is the innermost operator around the task, or around its launch, that has a
    backward; in backward the operator that it differentiates.
    """
    forward = graph.trace.events["forward_event"]
    own = forward.astype(np.int64)
    linked = forward[forward >= 0]
    own[linked] = np.where(own[linked] < 0, linked, own[linked])
    return inherited(graph, own)


def working(graph: Graph) -> Mask:
    """Tasks that do the work: on devices, if there are any, else on the CPU."""
    works = graph.on_device & ~graph.tasks.text("category").mask("communication")
    return works if works.any() else graph.tasks["mark"] == 0


def in_backward(graph: Graph) -> Mask:
    """Tasks of backward."""
    return graph.tasks.text("stage").mask("backward")


def step_ends(graph: Graph) -> dict[int, int]:
    """The task that marks the end of each step."""
    return dict(zip(graph.window.steps, np.flatnonzero(graph.tasks["mark"] > 0).tolist()[1:], strict=True))


def begins_next(graph: Graph) -> dict[int, int]:
    """The first task of the next step's forward, by step; the end of the last step.

    Forward begins on the device, if there is one; else where the step ends.
    """
    result = step_ends(graph)
    if not graph.on_device.any():
        return result
    rows = np.flatnonzero(working(graph) & graph.tasks.text("stage").mask("forward"))
    rows = rows[np.argsort(simulate(graph).start_ns[rows], kind="stable")]
    steps, first = np.unique(graph.tasks["step"][rows], return_index=True)
    begins = dict(zip(steps.tolist(), rows[first].tolist(), strict=True))
    for step, following in zip(graph.window.steps, graph.window.steps[1:], strict=False):
        result[step] = begins.get(following, result[step])
    return result


def weight_update(graph: Graph, change: str) -> Mask:
    """Working tasks of the weight update."""
    update = working(graph) & graph.tasks.text("stage").mask("optimizer")
    if not update.any():
        raise ChangeError(f"{change}: these steps have no weight update")
    return update


def followed(graph: Graph, tasks: Mask) -> Mask:
    """Those of some tasks after which another one of them comes on the same thread."""
    thread = graph.tasks["thread"]
    return np.asarray(tasks & np.append(tasks[1:] & (thread[1:] == thread[:-1]), False))


def scaled_with_gaps(graph: Graph, tasks: Mask, factor: float) -> Graph:
    """Scale some tasks and the gaps between them; the gap after the last of them stays."""
    gap, within = graph.tasks["gap_ns"].copy(), followed(graph, tasks)
    gap[within] = np.rint(gap[within] * factor)
    return scale(graph, tasks, factor).with_tasks(gap_ns=gap)


def last_updates(graph: Graph) -> dict[int, int]:
    """The last working task of each step's weight update."""
    rows = np.flatnonzero(working(graph) & graph.tasks.text("stage").mask("optimizer"))
    rows = rows[np.argsort(simulate(graph).end_ns[rows], kind="stable")]
    return dict(zip(graph.tasks["step"][rows].tolist(), rows.tolist(), strict=True))


def add_channel(graph: Graph, name: str, ordered: bool = False) -> tuple[Graph, int]:
    """Add a communication channel to the working device; returns the graph and its number."""
    return add_thread(graph, name, "communication", int(graph.threads["device"].max(initial=-1)), ordered)


def input_bytes(graph: Graph, event: int) -> int:
    """The size of an operator's first input; 0 where its shape was not recorded."""
    tensor = call_of(graph.trace, event).tensor(0)
    return tensor.bytes if tensor else 0


@dataclass(frozen=True, eq=False)
class Layers(ParallelArrays):
    """Forward operators with a backward, in the order in which forward runs them."""

    operator: Ids  # events.id
    name: NDArray[np.object_]
    step: Ids
    first: Ids  # tasks.id of its first working task in forward
    last: Ids  # tasks.id of its last working task in forward
    begun: Ids  # tasks.id of the first working task of its backward, -1 if unknown


def find_layers(graph: Graph) -> Layers:
    """Every forward operator of the graph with a backward and working tasks."""
    keys, works, backward = operators(graph), working(graph), in_backward(graph)
    rows = np.flatnonzero(works & ~backward & (keys >= 0))
    rows = rows[np.argsort(simulate(graph).start_ns[rows], kind="stable")]
    operator, place = np.unique(keys[rows], return_index=True)
    _, from_end = np.unique(keys[rows][::-1], return_index=True)
    order = np.argsort(place, kind="stable")
    operator, first, last = operator[order], rows[place][order], rows[::-1][from_end][order]
    begun = first_of(keys, np.flatnonzero(works & backward), operator)
    names = np.array(list(graph.trace.events.text("name").take(operator)), object)
    return Layers(operator, names, graph.tasks["step"][first].astype(np.int64), first, last, begun)


def calls_of(graph: Graph, tasks: Ids) -> Ids:
    """The CPU task that launches each device task.

    If the launch is unknown, the launch of the nearest task before it on its stream, else the
    graph's first task.
    """
    near = last_on_thread(graph, graph.launched_by >= 0, tasks)
    return np.where(near >= 0, graph.launched_by[near], 0)


def neighbor(graph: Graph, tasks: Ids, by: int) -> Ids:
    """The task `by` places after each on its thread, or -1."""
    other = np.clip(tasks + by, 0, len(graph) - 1)
    thread = graph.tasks["thread"]
    return np.where((thread[other] == thread[tasks]) & (other != tasks), other, -1)


def regions(graph: Graph, glob: str) -> Ids:
    """The outermost module (modules.id) around each task whose path matches a glob, or -1."""
    return np.append(outermost(graph, glob), -1)[graph.tasks["module"]]


def outermost(graph: Graph, glob: str) -> Ids:
    """The outermost module around each module, or itself, whose path matches a glob, or -1."""
    modules = graph.trace["modules"]
    matches = modules.text("path").where(lambda path: fnmatchcase(path, glob))
    chosen = nesting.outermost(modules["parent"], matches)
    return nesting.inherit(modules["parent"], np.where(chosen, modules["id"], -1)).astype(np.int64)


def first_of(keys: Ids, rows: Ids, wanted: Ids) -> Ids:
    """The first of `rows` (sorted) that has each wanted key, or -1, as for a wanted -1; `keys` are
    of every task, shape (tasks,)."""
    return np.append(rows, -1)[np.where(wanted >= 0, places_among(keys[rows], wanted), -1)]


FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")  # these take `fused=True` in torch.optim
_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")


def optimizer_class(name: str) -> str:
    """The class whose step an event is, by the event's name; empty for another event."""
    found = _STEP.match(name)
    return found[1] if found else ""


def fusible_steps(graph: Graph) -> Ids:
    """The `Optimizer.step` event of a fusible class that each task updates weights in; else -1.

    What a closure runs in such a step is no update, as the training step of Lightning.
    """
    events = graph.trace.events
    named = events.text("name").where(lambda name: optimizer_class(name) in FUSIBLE)
    return np.where(select(graph, stage="optimizer"), inherited(graph, np.where(named, events["id"], -1)), -1)
