"""`fused_optimizer`: the weight update in one kernel."""

from __future__ import annotations

import re

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select
from stepscope.whatif.change import Application, Change
from stepscope.whatif.parts.cpu_calibration import on_cpu
from stepscope.whatif.parts.fused_on_cpu import fused_assumptions, fused_on_cpu

_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")
_FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")  # these take `fused=True` in torch.optim


def fused_optimizer(graph: Graph) -> Graph:
    """A single kernel updates all weights, in the time of all the kernels it replaces.

    The launches of the replaced kernels go. On a CPU the time is calibrated.

    Raises:
        ChangeError: if the update is fused already or cannot be, or the CPU is not calibrated.

    Source: DAYDREAM section 5.1, algorithm 4; PyTorch, `torch.optim`, argument `fused`.
    """
    _refuse_unknown(graph)
    if on_cpu(graph):
        return fused_on_cpu(graph)
    kernels = select(graph, stage="optimizer", category="kernel", on_device=True)
    first = _first_of_each_step(graph, kernels)
    if kernels.sum() <= first.sum():
        raise ChangeError("fused_optimizer: the optimizer launches one kernel per step at most")
    total = np.bincount(_step_index(graph)[kernels], graph.tasks["duration_ns"][kernels])
    duration = graph.tasks["duration_ns"].copy()
    duration[first] = total[_step_index(graph)[first]].astype(np.int64)
    replaced = kernels & ~first
    return remove(graph.with_tasks(duration_ns=duration), replaced | _their_calls(graph, first))


def _refuse_unknown(graph: Graph) -> None:
    names = graph.trace.events.text("name").compact().values
    found = {match[1] for name in names if (match := _STEP.match(name))}
    if found and not found & set(_FUSIBLE):
        listed = ", ".join(sorted(found))
        raise ChangeError(f"fused_optimizer: {listed} is fused already, or cannot be; "
                          f"torch.optim fuses {', '.join(_FUSIBLE)}")  # fmt: skip


def _step_index(graph: Graph) -> Ids:
    """The index of each task's step in the window; the number of steps for tasks of no step."""
    steps = np.array(graph.window.steps)
    place = np.searchsorted(steps, graph.tasks["step"])
    known = np.isin(graph.tasks["step"], steps)
    return np.where(known, place, len(steps))


def _first_of_each_step(graph: Graph, kernels: Mask) -> Mask:
    rows = np.flatnonzero(kernels)
    _, index = np.unique(_step_index(graph)[rows], return_index=True)
    first = np.zeros(len(graph), np.bool_)
    first[rows[index]] = True
    return first


def _their_calls(graph: Graph, first: Mask) -> Mask:
    """CPU tasks of the optimizer after its first launch, except those that others wait for."""
    host = select(graph, stage="optimizer", on_device=False)
    links = graph.links
    tied = np.zeros(len(graph), np.bool_)
    tied[links["target"]] = True
    others = ~select(graph, stage="optimizer", category="kernel", on_device=True)
    tied[links["source"][others[links["target"]]]] = True
    calls = links["source"][first[links["target"]] & links.text("kind").mask("launch")]
    begun = np.full(len(graph.window.steps) + 1, len(graph), np.int64)
    np.minimum.at(begun, _step_index(graph)[calls], calls)
    after = np.arange(len(graph)) > begun[_step_index(graph)]
    same_thread = np.isin(graph.tasks["thread"], graph.tasks["thread"][calls])
    result: Mask = host & ~tied & after & same_thread
    return result


CHANGE = Change(
    fused_optimizer,
    group="Compute",
    basis="the measured kernels without their launches",
    assumptions=("the fused kernel takes as long as the kernels it replaces, with one launch",),
    error=0.13,
    error_source="DAYDREAM 6.3",
    basis_on_cpu="fused steps timed on this machine",
    is_calibrated=True,
    assumptions_on_cpu=fused_assumptions,
    one_rank=True,
    application=Application("Adam, AdamW, SGD and Adagrad get `fused=True` and `foreach=None`"),
)
