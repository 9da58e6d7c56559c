"""`checkpoint`: what if modules kept no activations, and backward computed them again?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, insert, numbers_after
from stepscope.trace.order import ends_run
from stepscope.whatif.layers import first_of, in_backward, regions

Ids = NDArray[np.int64]


def checkpoint(graph: Graph, module: str) -> Graph:
    """Activation checkpointing: backward of each module begins with its forward once more.

    Args:
        graph: of training steps.
        module: glob on the paths of the modules, such as `layers.*`; of modules inside each other
            the outermost counts.

    Raises:
        ChangeError: if no module matches, or no work of one is known in forward and in backward, or
            it is checkpointed already.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016;
    `torch.utils.checkpoint`.
    """
    key = _calls(graph, module)
    forward = (key >= 0) & graph.tasks.text("stage").mask("forward")
    backward = (key >= 0) & in_backward(graph)
    if not forward.any():
        raise ChangeError(f"checkpoint: no forward of a module that matches {module!r} is known")
    _refuse_recomputed(graph, backward)
    rows, before = [], []
    for side in (False, True):
        mine = np.flatnonzero(forward & (graph.on_device == side))
        begins = first_of(key, np.flatnonzero(backward & (graph.on_device == side)), key[mine])
        rows.append(mine[begins >= 0])
        before.append(begins[begins >= 0])
    if not sum(map(len, rows)):
        raise ChangeError(f"checkpoint: no backward of a module that matches {module!r} is known")
    return _repeated(graph, np.concatenate(rows), np.concatenate(before))


def _calls(graph: Graph, module: str) -> Ids:
    """One number for each module that matches and step, -1 for other tasks."""
    region = regions(graph, module)
    step = graph.tasks["step"].astype(np.int64)
    return np.where((region >= 0) & (step >= 0), step * len(graph.trace["modules"]) + region, -1)


def _refuse_recomputed(graph: Graph, backward: NDArray[np.bool_]) -> None:
    again = np.append(graph.trace.events["recompute"], 0)[graph.tasks["event"]] > 0
    if (again & backward).any():
        raise ChangeError("checkpoint: backward computes forward again already")


def _repeated(graph: Graph, rows: Ids, before: Ids) -> Graph:
    """The tasks once more, each in front of another, and what they launch launched."""
    tasks = graph.tasks
    names = [f"{name} again" for name in tasks.text("name").take(rows)]
    facts = {name: tasks[name][rows] for name in ("duration_ns", "gap_ns", "category", "kind",
                                                  "module", "bytes")}  # fmt: skip
    # What follows the last of them is not the module's.
    last = ends_run(before)
    facts["gap_ns"] = np.where(last, 0, facts["gap_ns"])
    graph, new = insert(graph, before, names, in_front=True, stage="backward", **facts)
    old = numbers_after(len(graph), new)[rows]
    launch = graph.links.take(graph.links.text("kind").mask("launch"))
    copy = np.full(len(graph), -1)
    copy[old] = new
    both = (copy[launch["source"]] >= 0) & (copy[launch["target"]] >= 0)
    lag = np.minimum(launch["lag_ns"], np.median(launch["lag_ns"]) if len(launch) else 0)
    source, target = copy[launch["source"][both]], copy[launch["target"][both]]
    return add_links(graph, source, target, "launch", lag[both])
