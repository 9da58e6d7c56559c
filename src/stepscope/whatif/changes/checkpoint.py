"""`checkpoint`: activation checkpointing."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, insert, numbers_after
from stepscope.trace.row_order import ends_run
from stepscope.whatif.change import OURS, Change
from stepscope.whatif.memory_effects.checkpointing import checkpointed
from stepscope.whatif.parts.layers import first_of, in_backward, regions


def checkpoint(graph: Graph, module: str) -> Graph:
    """Activation checkpointing: backward of each module first repeats its forward.

    On the CPU and on the device.

    Args:
        graph: of training steps.
        module: glob for module paths, such as `layers.*`; of nested matches the outermost counts.

    Raises:
        ChangeError: if no module matches, its forward or backward work is unknown, or it is
            checkpointed already.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016;
    `torch.utils.checkpoint`.
    """
    key = _calls(graph, module)
    forward = (key >= 0) & graph.tasks.text("stage").mask("forward")
    backward = (key >= 0) & in_backward(graph)
    if not forward.any():
        raise ChangeError(f"checkpoint: no forward work is in a module that matches {module!r}")
    _refuse_recomputed(graph, backward)
    rows, before = [], []
    for side in (False, True):
        repeated = np.flatnonzero(forward & (graph.on_device == side))
        begins = first_of(key, np.flatnonzero(backward & (graph.on_device == side)), key[repeated])
        rows.append(repeated[begins >= 0])
        before.append(begins[begins >= 0])
    if not sum(map(len, rows)):
        raise ChangeError(f"checkpoint: no backward work is in a module that matches {module!r}")
    return _repeated(graph, np.concatenate(rows), np.concatenate(before))


def _calls(graph: Graph, module: str) -> Ids:
    """A number for each matching module and step; -1 for other tasks."""
    region = regions(graph, module)
    step = graph.tasks["step"].astype(np.int64)
    return np.where((region >= 0) & (step >= 0), step * len(graph.trace["modules"]) + region, -1)


def _refuse_recomputed(graph: Graph, backward: Mask) -> None:
    again = np.append(graph.trace.events["recompute"], 0)[graph.tasks["event"]] > 0
    if (again & backward).any():
        raise ChangeError("checkpoint: backward recomputes forward already")


def _repeated(graph: Graph, rows: Ids, before: Ids) -> Graph:
    """Repeat tasks, each before another one, and launch what they launch."""
    tasks = graph.tasks
    names = [f"{name} again" for name in tasks.text("name").take(rows)]
    facts = {name: tasks[name][rows] for name in ("duration_ns", "gap_ns", "category", "kind",
                                                  "module", "bytes")}  # fmt: skip
    # The gap after the last of them is not the module's.
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


CHANGE = Change(
    checkpoint,
    group="Memory",
    basis="the measured forward, repeated",
    assumptions=(
        "forward takes as long the second time, launches included; all of it is repeated",
        "the freed memory is not used for anything",
    ),
    error=0.07,
    error_source=OURS,
    ranked=False,
    memory=checkpointed,
    memory_error=0.01,
)
