"""`fused_optimizer`: what if the weight update were one kernel?"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select
from stepscope.whatif.calibrated import on_cpu
from stepscope.whatif.fused_on_cpu import fused_on_cpu

Mask = NDArray[np.bool_]
_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")
_FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")  # what torch.optim takes `fused=True` for


def fused_optimizer(graph: Graph) -> Graph:
    """One kernel updates all weights: it takes as long as all the kernels it replaces.

    On a CPU it takes what the calibration says.

    Raises:
        ChangeError: if the update is fused already, is of an optimizer that cannot be fused, or
            runs on a CPU that is not calibrated.

    Source: DAYDREAM section 5.1, algorithm 4; PyTorch, `torch.optim`, argument `fused`.
    """
    _refuse_unknown(graph)
    if on_cpu(graph):
        return fused_on_cpu(graph)
    kernels = select(graph, stage="optimizer", category="kernel", on_device=True)
    first = _first_of_each_step(graph, kernels)
    if kernels.sum() <= first.sum():
        raise ChangeError("fused_optimizer: no step launches several kernels in its optimizer")
    total = np.bincount(_place(graph)[kernels], graph.tasks["duration_ns"][kernels])
    duration = graph.tasks["duration_ns"].copy()
    duration[first] = total[_place(graph)[first]].astype(np.int64)
    replaced = kernels & ~first
    return remove(graph.with_tasks(duration_ns=duration), replaced | _their_calls(graph, first))


def _refuse_unknown(graph: Graph) -> None:
    names = graph.trace.events.text("name").compact().values
    found = {match[1] for name in names if (match := _STEP.match(name))}
    if found and not found & set(_FUSIBLE):
        listed = ", ".join(sorted(found))
        raise ChangeError(f"fused_optimizer: {listed} is fused already or cannot be; "
                          f"torch.optim fuses {', '.join(_FUSIBLE)}")  # fmt: skip


def _place(graph: Graph) -> NDArray[np.int64]:
    """The number of each task's step, counted from 0; one more for none."""
    steps = np.array(graph.window.steps)
    place = np.searchsorted(steps, graph.tasks["step"])
    known = np.isin(graph.tasks["step"], steps)
    return np.where(known, place, len(steps))


def _first_of_each_step(graph: Graph, kernels: Mask) -> Mask:
    rows = np.flatnonzero(kernels)
    _, index = np.unique(_place(graph)[rows], return_index=True)
    first = np.zeros(len(graph), np.bool_)
    first[rows[index]] = True
    return first


def _their_calls(graph: Graph, first: Mask) -> Mask:
    """What the CPU does in the optimizer after the first launch, but for what others wait for."""
    host = select(graph, stage="optimizer", on_device=False)
    links = graph.links
    tied = np.zeros(len(graph), np.bool_)
    tied[links["target"]] = True
    others = ~select(graph, stage="optimizer", category="kernel", on_device=True)
    tied[links["source"][others[links["target"]]]] = True
    calls = links["source"][first[links["target"]] & links.text("kind").mask("launch")]
    begun = np.full(len(graph.window.steps) + 1, len(graph), np.int64)
    np.minimum.at(begun, _place(graph)[calls], calls)
    after = np.arange(len(graph)) > begun[_place(graph)]
    same_thread = np.isin(graph.tasks["thread"], graph.tasks["thread"][calls])
    result: Mask = host & ~tied & after & same_thread
    return result
