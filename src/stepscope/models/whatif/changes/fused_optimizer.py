"""`fused_optimizer`: the weight update in one kernel."""

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import OnCpu, on_cpu
from stepscope.models.whatif.cpu.updates import fused_assumptions, fused_on_cpu
from stepscope.models.whatif.parts.layers import FUSIBLE, fusible_steps, optimizer_class


def fused_optimizer(graph: Graph) -> Graph:
    """A single kernel per update of an optimizer, in the time of all the kernels it replaces.

    The launches of the replaced kernels go. On a CPU the time is calibrated. Optimizers that
    torch.optim cannot fuse stay as they are.

    Source: DAYDREAM section 5.1, algorithm 4; PyTorch, `torch.optim`, argument `fused`.
    """
    _refuse_unknown(graph)
    if on_cpu(graph):
        return fused_on_cpu(graph)
    update = _updates(graph)
    kernels = (update >= 0) & select(graph, stage="optimizer", category="kernel", on_device=True)
    rows = np.flatnonzero(kernels)
    first = np.zeros(len(graph), np.bool_)
    first[rows[np.unique(update[rows], return_index=True)[1]]] = True
    if kernels.sum() <= first.sum():
        raise ChangeError("fused_optimizer: the optimizer launches one kernel per step at most")
    total = np.bincount(update[kernels], graph.tasks["duration_ns"][kernels])
    duration = graph.tasks["duration_ns"].copy()
    duration[first] = total[update[first]].astype(np.int64)
    replaced = kernels & ~first
    calls = _their_calls(graph, update, first)
    return remove(graph.with_tasks(duration_ns=duration), replaced | calls)


def _refuse_unknown(graph: Graph) -> None:
    names = graph.trace.events.text("name").compact().values
    found = {one for name in names if (one := optimizer_class(name))}
    if found and not found & set(FUSIBLE):
        listed = ", ".join(sorted(found))
        raise ChangeError(
            f"fused_optimizer: {listed} is fused already, or cannot be; "
            f"torch.optim fuses {', '.join(FUSIBLE)}"
        )


def _updates(graph: Graph) -> Ids:
    """The update that each task is part of, by number; of a step if none is marked; else -1."""
    marked = fusible_steps(graph)
    if (marked < 0).all():
        step = graph.tasks["step"].astype(np.int64)
        marked = np.where(np.isin(step, graph.window.steps), step, -1)
    known = marked >= 0
    numbers = np.full(len(graph), -1, np.int64)
    numbers[known] = np.unique(marked[known], return_inverse=True)[1]
    return numbers


def _their_calls(graph: Graph, update: Ids, first: Mask) -> Mask:
    """CPU tasks of each update after its first launch, except those that others wait for."""
    host = (update >= 0) & select(graph, stage="optimizer", on_device=False)
    links = graph.links
    tied = np.zeros(len(graph), np.bool_)
    tied[links["target"]] = True
    others = ~select(graph, stage="optimizer", category="kernel", on_device=True)
    tied[links["source"][others[links["target"]]]] = True
    calls = links["source"][first[links["target"]] & links.text("kind").mask("launch")]
    begun = np.full(update.max() + 2, len(graph), np.int64)  # the last is of tasks of none
    np.minimum.at(begun, update[calls], calls)
    after = np.arange(len(graph)) > begun[update]
    same_thread = np.isin(graph.tasks["thread"], graph.tasks["thread"][calls])
    return np.asarray(host & ~tied & after & same_thread)


CHANGE = Change(
    fused_optimizer,
    group="Compute",
    basis="the measured kernels without their launches",
    assumptions=("the fused kernel takes as long as the kernels it replaces, with one launch",),
    error=0.13,
    error_source="DAYDREAM 6.3",
    on_cpu=OnCpu("fused steps timed on this machine", fused_assumptions),
    one_rank=True,
    application=Application("Adam, AdamW, SGD and Adagrad get `fused=True` and `foreach=None`"),
)
