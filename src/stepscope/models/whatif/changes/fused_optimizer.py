"""`fused_optimizer`: the weight update in one kernel."""

import re

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.graph import Graph, remove, select
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import CpuPrediction, on_cpu
from stepscope.models.whatif.cpu.updates import fused_assumptions, fused_on_cpu
from stepscope.models.whatif.parts.layers import FUSIBLE, fusible_steps, optimizer_class
from stepscope.trace.nesting import inherit
from stepscope.trace.sets import mask_of


def fused_optimizer(graph: Graph) -> Graph:
    """A single kernel per update of an optimizer, in the time of the bytes that it moves.

    The fused kernel moves each value once, as fast as the kernels that it replaces; where these are
    not known it takes as long as they. Their launches go. On a CPU the time is calibrated.
    Optimizers that torch.optim cannot fuse stay as they are.

    Source: DAYDREAM section 5.1, algorithm 4; PyTorch, `torch.optim`, argument `fused`.
    """
    _refuse_unknown(graph)
    if on_cpu(graph):
        return fused_on_cpu(graph)
    update, kernels = _updates(graph), _kernels(graph)
    rows = np.flatnonzero(kernels)
    first = mask_of(rows[np.unique(update[rows], return_index=True)[1]], len(graph))
    if kernels.sum() <= first.sum():
        raise ChangeError(
            "fused_optimizer: the optimizer is fused already, or launches one kernel per step at most"
        )
    total = np.bincount(update[kernels], graph.tasks["duration_ns"][kernels])
    duration = graph.tasks["duration_ns"].copy()
    duration[first] = (total[update[first]] * _bytes_left(graph, kernels)).astype(np.int64)
    gone = (kernels & ~first) | _their_calls(graph, update, first)
    return remove(graph.with_tasks(duration_ns=duration), gone)


# Bytes of an element in FP32 that operators of an update read and write, and that fused kernels do.
# Source: PyTorch, torch/optim/adam.py and others, and aten/src/ATen/native/cuda/fused_adam_utils.cuh.
_MOVED = {
    "lerp": 12,
    "mul": 8,
    "addcmul": 12,
    "addcdiv": 16,
    "sqrt": 8,
    "div": 8,
    "add": 8,
    "sub": 8,
    "neg": 8,
}
_SUM = 12  # of SGD, which adds two values, where the others add a number
_FUSED = {"Adam": 28, "AdamW": 28, "Adagrad": 20, "SGD": 20}
_OPERATOR = re.compile(r"aten::(?:_foreach_)?([a-z]+?)_?$")


def _bytes_left(graph: Graph, kernels: Mask) -> float:
    """Bytes of the fused kernel over those of the kernels that it replaces; 1 if unknown."""
    events = graph.trace.events
    names = events.text("name")
    classes = _classes(graph) & {*_FUSED}
    moved = np.array([_moved(name, "SGD" in classes) for name in names.values])
    known = moved[names.codes] > 0
    around = inherit(events["parent"], np.where(known, np.arange(len(events)), -1).astype(np.int32))
    caller = launch_of(graph.trace)[graph.tasks["event"][kernels]]
    operator = np.where(caller >= 0, around[caller], -1)
    if (operator < 0).any() or len(classes) != 1:
        return 1.0
    # Kernels move the bytes of their operator for the values that it covers: all operators of a name
    # together for each value, once or, where there are twice as many as of another name, twice.
    found, count = np.unique(names.codes[np.unique(operator)], return_counts=True)
    return min(_FUSED[classes.pop()] / float((moved[found] * count).sum() / count.min()), 1.0)


def _kernels(graph: Graph) -> Mask:
    """Kernels of updates that are not fused yet."""
    updates = select(graph, stage="optimizer", category="kernel", on_device=True)
    fused = select(graph, operator="aten::_fused_*") | select(graph, name="triton_*")
    return np.asarray(updates & (_updates(graph) >= 0) & ~fused)


def _error(graph: Graph) -> float:
    """The largest that was measured: on a CPU 5.3 %, of Adam by bytes on an H200 0.4 % of six models."""
    if on_cpu(graph):
        return 0.06
    by_bytes = _classes(graph) <= {"Adam", "AdamW"} and _bytes_left(graph, _kernels(graph)) < 1
    return 0.01 if by_bytes else CHANGE.error


def _moved(name: str, sums: bool) -> int:
    found = _OPERATOR.match(name)
    kind = found[1] if found else ""
    return _SUM if sums and kind == "add" else _MOVED.get(kind, 0)


def _refuse_unknown(graph: Graph) -> None:
    framework = graph.trace.metadata.framework
    if framework not in ("", "pytorch"):
        raise ChangeError(f"fused_optimizer: it is for torch.optim, and this trace is from {framework}")
    found = _classes(graph)
    if found and not found & set(FUSIBLE):
        raise ChangeError(
            f"fused_optimizer: {', '.join(sorted(found))} is fused already, or cannot be; "
            f"torch.optim fuses {', '.join(FUSIBLE)}"
        )


def _classes(graph: Graph) -> set[str]:
    """The classes of all optimizers of the trace."""
    names = graph.trace.events.text("name").compact().values
    return {one for name in names if (one := optimizer_class(name))}


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
    others = ~select(graph, stage="optimizer", category="kernel", on_device=True)
    tied = mask_of(np.append(links["target"], links["source"][others[links["target"]]]), len(graph))
    calls = graph.launches["source"][first[graph.launches["target"]]]
    begun = np.full(update.max() + 2, len(graph), np.int64)  # the last is of tasks of none
    np.minimum.at(begun, update[calls], calls)
    after = np.arange(len(graph)) > begun[update]
    return np.asarray(host & ~tied & after & np.isin(graph.tasks["thread"], graph.tasks["thread"][calls]))


CHANGE = Change(
    fused_optimizer,
    group="Compute",
    basis="the measured kernels without their launches",
    assumptions=("the fused kernel moves its bytes as fast as the kernels it replaces",),
    error=0.13,
    error_source="DAYDREAM 6.3",
    error_of=_error,
    on_cpu=CpuPrediction("fused steps timed on this machine", fused_assumptions),
    one_rank=True,
    application=Application("Adam, AdamW, SGD and Adagrad get `fused=True` and `foreach=None`"),
)
