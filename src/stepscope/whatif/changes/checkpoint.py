"""`checkpoint`: activation checkpointing."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, insert, numbers_after
from stepscope.trace.row_order import begins_run, ends_run
from stepscope.whatif.change import OURS, Change
from stepscope.whatif.memory_effects.checkpointing import checkpointed
from stepscope.whatif.parts.layers import first_of, in_backward, operators, regions
from stepscope.whatif.parts.saved_tensors import saved_tensors


def checkpoint(graph: Graph, module: str, call_us: float = 80.0, saved_us: float = 7.0) -> Graph:
    """Activation checkpointing: backward of each module first repeats its forward.

    On the CPU and on the device. `torch.utils.checkpoint` takes CPU time itself, for each call and
    for each tensor that is saved for backward.

    Args:
        graph: of training steps.
        module: glob for module paths, such as `layers.*`; of nested matches the outermost counts.
        call_us: CPU time of `torch.utils.checkpoint` for a call, us.
        saved_us: the same for each tensor that an operator of the call saves for backward, us.

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
    again, anchors = _repeats(graph, key, forward, backward)
    if not len(again):
        raise ChangeError(f"checkpoint: no backward work is in a module that matches {module!r}")
    host = ~graph.on_device[again]
    starts = begins_run(anchors[host])
    took = call_us + saved_us * _saved(graph, again[host], starts)
    graph, new = _repeated(graph, again, anchors)
    return _with_bookkeeping(graph, new[host][starts], took)


def _repeats(graph: Graph, key: Ids, forward: Mask, backward: Mask) -> tuple[Ids, Ids]:
    """The tasks to repeat, those on the CPU first, and the task in front of which each goes."""
    rows, before = [], []
    for side in (False, True):
        repeated = np.flatnonzero(forward & (graph.on_device == side))
        begins = first_of(key, np.flatnonzero(backward & (graph.on_device == side)), key[repeated])
        rows.append(repeated[begins >= 0])
        before.append(begins[begins >= 0])
    return np.concatenate(rows), np.concatenate(before)


def _calls(graph: Graph, module: str) -> Ids:
    """A number for each matching module and step; -1 for other tasks."""
    region = regions(graph, module)
    step = graph.tasks["step"].astype(np.int64)
    return np.where((region >= 0) & (step >= 0), step * len(graph.trace["modules"]) + region, -1)


def _refuse_recomputed(graph: Graph, backward: Mask) -> None:
    again = np.append(graph.trace.events["recompute"], 0)[graph.tasks["event"]] > 0
    if (again & backward).any():
        raise ChangeError("checkpoint: backward recomputes forward already")


def _repeated(graph: Graph, rows: Ids, before: Ids) -> tuple[Graph, Ids]:
    """Repeat tasks, each before another one, and launch what they launch; the new tasks' ids."""
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
    return add_links(graph, source, target, "launch", lag[both]), new


def _saved(graph: Graph, rows: Ids, starts: Mask) -> Floats:
    """How many tensors the operators of each run of tasks save for backward."""
    operator, run = operators(graph)[rows], np.cumsum(starts) - 1
    known = operator >= 0
    runs, each = np.unique(np.stack([run[known], operator[known]]), axis=1)
    saved = np.bincount(runs, saved_tensors(graph, each), minlength=int(starts.sum()))
    return saved.astype(np.float64)


def _with_bookkeeping(graph: Graph, anchors: Ids, took_us: Floats) -> Graph:
    """In front of each anchor the CPU time of `torch.utils.checkpoint` itself."""
    names = ["torch.utils.checkpoint"] * len(anchors)
    time = np.rint(took_us * 1e3)
    return insert(graph, anchors, names, in_front=True, duration_ns=time)[0]


CHANGE = Change(
    checkpoint,
    group="Memory",
    basis="the measured forward, repeated",
    assumptions=(
        "forward takes as long the second time, launches included; all of it is repeated, and "
        "torch.utils.checkpoint takes what it took here (benchmarks/checkpoint_cost.py)",
        "the freed memory is not used for anything",
    ),
    error=0.12,
    error_source=OURS,
    ranked=False,
    memory=checkpointed,
    memory_error=0.01,
)
