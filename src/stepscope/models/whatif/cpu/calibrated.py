"""What the machine's calibration says about a graph's steps where the CPU does the work.

Changes ask here instead of reading the calibration. Each answer is None where the machine was not
calibrated, or its calibration lacks such times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError, NotMeasured
from stepscope.graph import Graph
from stepscope.models.calibration import Calibration, Machine, find_calibration
from stepscope.models.calibration.calibration import between
from stepscope.models.whatif.parts.kernel_times import memory_rate

_FLOAT_BYTES = 4  # of an FP32 value; tables of gradients and casts count elements


@dataclass(frozen=True)
class OnCpu:
    """How a change is predicted where the CPU does the work, with times of the calibration.

    Attributes:
        basis: where its numbers come from, in a few words; by default as on a device.
        assumptions: what has to hold, given the graph; by default the same as on a device.
    """

    basis: str = ""
    assumptions: Callable[[Graph], tuple[str, ...]] | None = None

    def based_on(self, graph: Graph, otherwise: str) -> str:
        """The basis, and how busy the machine was when it was calibrated, if it was."""
        calibration = _calibration(graph)
        busy = f" (calibration {calibration.load})" if calibration and calibration.is_disturbed else ""
        return (self.basis or otherwise) + busy


def on_cpu(graph: Graph) -> bool:
    """Whether the CPU does the work: no device runs anything."""
    return not graph.on_device.any()


def needed_calibration(graph: Graph, change: str) -> Calibration:
    """The calibration for a graph's trace."""
    metadata = graph.trace.metadata
    if metadata.framework not in ("", "pytorch"):
        raise ChangeError(
            f"{change}: on a CPU this is predicted from times of PyTorch operators; this trace is "
            f"from {metadata.framework}"
        )
    calibration = find_calibration(metadata)
    if calibration is None:
        raise NotMeasured(
            f"{change}: on a CPU this depends on the machine, and there is no calibration for "
            f"{Machine.of(metadata)}; run `stepscope calibrate FILE` on the machine that recorded "
            "the trace"
        )
    return calibration


def copy_rate(graph: Graph, size: float) -> float | None:
    """Bytes per ns of copying `size` bytes.

    As calibrated; else half of the rate of this step's elementwise work, which reads and writes.
    """
    calibration = _calibration(graph)
    rate = calibration.copy_rate(size) if calibration else None
    moved = memory_rate(graph) if rate is None else None
    return moved / 2 if moved else rate


def casts_ns(graph: Graph, size: Floats) -> tuple[Floats, Floats] | None:
    """Time to cast FP32 values of some bytes to 16 bits, and back, each of shape (n,)."""
    calibration = _calibration(graph)
    if calibration is None or not calibration.casts or not on_cpu(graph):
        return None
    down, up = _columns(calibration.casts, size / _FLOAT_BYTES, 1, 2)
    return down, up


def sparse_gradients_ns(graph: Graph, size: Floats) -> tuple[Floats, Floats, Floats] | None:
    """Time to compress gradients of some bytes, to add one worker's share, and to empty."""
    calibration = _calibration(graph)
    if calibration is None or not calibration.sparse_gradients or not on_cpu(graph):
        return None
    packed, added, emptied = _columns(calibration.sparse_gradients, size / _FLOAT_BYTES, 1, 2, 3)
    return packed, added, emptied


def handover_ns(graph: Graph, size: float) -> tuple[float, float]:
    """CPU time that handing over a batch costs the loop and the worker; 0 if not calibrated."""
    calibration = _calibration(graph)
    if calibration is None or not calibration.loading:
        return 0.0, 0.0
    return between(calibration.loading, size, 1), between(calibration.loading, size, 2)


def collectives_cpu_ns(graph: Graph, size: Floats) -> Floats | None:
    """CPU time of an all-reduce between two processes of this machine, by its bytes."""
    calibration = _calibration(graph)
    return _columns(calibration.reducing, size, 2)[0] if calibration and calibration.reducing else None


def loopback(graph: Graph) -> dict[str, float]:
    """The network inside this machine, as parameters of a change; empty if not calibrated.

    Source: the time of a ring of two in `stepscope.models.whatif.parts.network`: bytes over the
    bandwidth, and two latencies.
    """
    calibration = _calibration(graph)
    if calibration is None or not calibration.reducing:
        return {}
    rows = [(row[0], row[1]) for row in calibration.reducing]
    (_, short_ns), (size, long_ns) = min(rows), max(rows)
    return {
        "bandwidth_gbps": round(size * 8 / max(long_ns - short_ns, 1.0), 3),
        "latency_us": round(short_ns / 2e3, 1),
    }


def _calibration(graph: Graph) -> Calibration | None:
    return find_calibration(graph.trace.metadata)


def _columns(rows: Sequence[Sequence[float]], at: Floats, *columns: int) -> list[Floats]:
    """Columns of a calibrated table, interpolated at some places."""
    return [np.array([between(rows, one, column) for one in at.tolist()]) for column in columns]
