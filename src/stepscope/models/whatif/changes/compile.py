"""`compile`: torch.compile on each model, as Inductor fuses it on a GPU."""

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, scale, select
from stepscope.models.kernels.products import BYTES, HALF, SINGLE
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import on_cpu
from stepscope.models.whatif.parts.fused_attention import Chains, fused_chains, without_intermediates
from stepscope.models.whatif.parts.gpu_precision import FLOOR_NS, fused_casts_ns
from stepscope.models.whatif.parts.kernel_times import memory_rate
from stepscope.models.whatif.parts.step_work import StepWork, step_work
from stepscope.trace.schema import FORWARD_STAGES

_ONLY_MEASURED = "on a CPU the effect of a compiler is not predicted, only measured"
# Of the CPU time of an operator with one kernel: what a generated call takes, which allocates and
# launches without dispatch and autograd. Chosen, and not measured.
_CALL = {"low": 1.5, "typical": 1.0, "high": 0.6}
_CALL_NS = 10_000.0  # of such an operator where a step has none; typical of PyTorch
_LOOKUP = ("embedding_dense_backward", "embedding_backward", "_index_put_impl_")
_LOOKUP_KERNELS = 2  # that empty the gradient and add to it; PyTorch sorts indices before


def compile(graph: Graph, estimate: str = "typical") -> Graph:
    """torch.compile on each model, as Inductor fuses it on a GPU.

    Operators between products, convolutions and attention become one kernel for values of one size. It takes
    the time of the bytes that it still moves, as fast as the kernels that it replaces. Of what the CPU does
    in modules a call for each kernel that is left remains. Products, attention, recurrent layers, lookups,
    the weight update and what is outside of modules stay. With `amp`, casts of activations are fused as well.

    Args:
        estimate: `low`: intermediate values are written for backward, and calls are slow; `typical`:
            they are computed again; `high`: in addition kernels move bytes at this step's rate, and
            calls are fast.
    """
    if estimate not in _CALL:
        raise ChangeError(f"compile: expected estimate=low, typical or high; found {estimate!r}")
    if on_cpu(graph):
        raise ChangeError(f"compile: {_ONLY_MEASURED}; run `stepscope verify compile SCRIPT`")
    if select(graph, name="triton_*", on_device=True).any():
        raise ChangeError("compile: these steps run kernels that a compiler generated")
    work = graph.once(step_work)
    if not any(work.operators.calls):
        raise ChangeError("compile: needs the shapes of operators; record with `stepscope run`")
    return _called(_fused(graph, work, estimate), work.simple_call_ns, estimate)


def _fused(graph: Graph, work: StepWork, estimate: str) -> Graph:
    """The graph with one kernel for each chain, and lookups without sorted indices."""
    chains = graph.once(fused_chains)
    if not (chains.group >= 0).any():
        raise ChangeError("compile: no operator is fused with another")
    length = graph.tasks["duration_ns"].astype(np.float64)
    has = work.kernel >= 0
    casts = fused_casts_ns(graph, work)[has]
    length[work.kernel[has]] = np.maximum(length[work.kernel[has]] - casts, FLOOR_NS * (casts > 0))
    gone = graph.on_device & np.append(chains.group >= 0, False)[work.of_task]
    time = np.bincount(work.of_task[gone], length[gone], len(work.kernel)).astype(np.float64)
    members = np.flatnonzero(chains.group >= 0)
    left = np.minimum(_bytes_ns(graph, work, chains, time, estimate), time)[members]
    first = np.unique(chains.group[members])
    length[work.kernel[first]] = np.bincount(chains.group[members], left)[first]
    gone[work.kernel[first]] = False
    if estimate != "low":
        count = np.where(np.isin(work.names, _LOOKUP) & chains.inside, _LOOKUP_KERNELS, -1)
        gone |= work.surplus(graph, count, graph.on_device)
    return remove(graph.with_tasks(duration_ns=np.rint(length)), gone)


def _bytes_ns(graph: Graph, work: StepWork, chains: Chains, time: Floats, estimate: str) -> Floats:
    """The time of the bytes that each operator still moves; a kernel begins with the first."""
    begin = np.where(chains.group == np.arange(len(time)), FLOOR_NS, 0.0)
    moving = np.maximum(time - work.kernels * FLOOR_NS, 0.0)
    left = moving * (chains.most if estimate == "low" else chains.least)
    rate = memory_rate(graph)
    if estimate == "high" and rate:
        width = BYTES[HALF if HALF in graph.settings else SINGLE]
        left = np.minimum(left, chains.moved * width / rate)
    return begin + left


def _called(graph: Graph, call_ns: Floats, estimate: str) -> Graph:
    """The graph whose CPU takes a generated call for each kernel of compiled modules."""
    modules = graph.tasks["module"] >= 0
    host = ~graph.on_device & (modules | ~modules.any())
    stages = graph.tasks.text("stage")
    for names, each_ns in zip((FORWARD_STAGES, ("backward",)), call_ns.tolist(), strict=True):
        tasks = host & stages.mask(*names)
        before = sum(float(graph.tasks[name][tasks].sum()) for name in ("duration_ns", "gap_ns"))
        calls = np.count_nonzero(tasks[graph.launches["source"]]) * _CALL[estimate] * (each_ns or _CALL_NS)
        graph = scale(graph, tasks, min(calls / before, 1.0) if before else 1.0, gaps=True)
    return graph


CHANGE = Change(
    compile,
    group="Compute",
    order=1,
    basis="bytes that chains of operators still move; never compared with a measurement",
    assumptions=(
        "models compile as a whole, once, and shapes stay",
        "a fused kernel moves bytes as fast as those it replaces; a generated call costs the CPU what "
        "an operator of one kernel does",
    ),
    low={"estimate": "low"},
    high={"estimate": "high"},
    application=Application("`model.compile()` before each model's first call"),
    only_measured=_ONLY_MEASURED,
    memory=without_intermediates,
    memory_error=0.04,  # of a GPT-2 on a CPU, whose peak fell by 4 % where none was predicted
    excludes=("kernel_fusion",),
)
