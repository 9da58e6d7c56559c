"""`compress`: gradients sent in 16 bits."""

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.cpu.calibrated import FLOAT_BYTES, CpuPrediction, calibrated, on_cpu
from stepscope.models.whatif.parts.gradients import converted
from stepscope.models.whatif.parts.kernel_times import bytes_per_ns, in_half
from stepscope.models.whatif.parts.network import FIXED_COST, all_reduces, refuse_unsized

_FP32 = "float"
_MOVED = 1.5  # of the gradient's bytes: it is read, and half of it written; and the other way


def compress(graph: Graph, latency_us: float = 0.0) -> Graph:
    """Gradients are cast to 16 bits, all-reduced, and cast back.

    On a device both casts are kernels that run concurrently with the computation. On a CPU the
    thread that filled a bucket casts it; the casts back run on a thread of their own.

    Args:
        graph: of steps with all-reduces in FP32, measured or added by `ddp`.
        latency_us: fixed cost of a call where recorded sizes do not show it, us.

    Source: PyTorch, torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py.
    """
    reduces = all_reduces(graph)
    wide = reduces & ~_narrow(graph, np.flatnonzero(reduces))
    if reduces.any() and not wide.any():
        raise ChangeError("compress: no all-reduce of these steps sends FP32")
    refuse_unsized(graph, "compress", wide)
    casts = _casts_ns(graph, graph.tasks["bytes"][wide].astype(np.float64))
    return converted(graph, np.flatnonzero(wide), (0.5, latency_us), ("cast of gradients",) * 2, casts)


def _narrow(graph: Graph, tasks: Ids) -> Mask:
    """Collectives of anything but FP32, by their name or recorded type."""
    result = in_half(graph)
    for task in tasks[graph.tasks["event"][tasks] >= 0].tolist():
        arguments = graph.trace.event_arguments(int(graph.tasks["event"][task]))
        result[task] |= str(arguments.get("dtype", _FP32)).lower() not in (_FP32, "float32")
    return result


def _casts_ns(graph: Graph, size: Floats) -> tuple[Floats, Floats]:
    """Time of casts to 16 bits and back: calibrated on a CPU, else by the memory bandwidth."""
    if on_cpu(graph) and (times := calibrated(graph, "casts", size / FLOAT_BYTES, 1, 2)):
        return times[0], times[1]
    time = _MOVED * size / bytes_per_ns(graph, "compress")
    return time, time


CHANGE = Change(
    compress,
    group="Distributed training",
    basis="half the measured transfer, plus casts at memory bandwidth",
    on_cpu=CpuPrediction(),
    assumptions=(
        FIXED_COST,
        "adding in 16 bits is no slower",
        "casts overlap computation and move bytes as fast as this step's elementwise work; on a "
        "CPU as calibrated",
    ),
    low={"latency_us": 1e6},
    error=0.10,
    error_source="DAYDREAM 6.5",
    application=Application(
        "each `DistributedDataParallel`, the script's or that added by `ddp` "
        "(`ddp:workers=2+compress`), all-reduces gradients in bfloat16 by a communication hook"
    ),
    excludes=("dgc",),
)
