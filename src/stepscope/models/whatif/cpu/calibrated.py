"""What the machine's calibration says about a graph's steps where the CPU does the work.

Each answer is None where the machine was not calibrated, or its calibration lacks such times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError, NotMeasured
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Calibration, Machine, between, find_calibration
from stepscope.models.whatif.parts.kernel_times import memory_rate

FLOAT_BYTES = 4  # of an FP32 value; tables of gradients and casts count elements
CalibrationTable = Literal["casts", "copies", "sparse_gradients", "reducing", "loading"]


@dataclass(frozen=True)
class CpuPrediction:
    """How a change is predicted where the CPU does the work, with times of the calibration."""

    basis: str = ""  # where its numbers come from, in a few words; by default as on a device
    # what has to hold, given the graph; by default the same as on a device
    assumptions: Callable[[Graph], tuple[str, ...]] | None = None

    def based_on(self, graph: Graph, otherwise: str) -> str:
        """The basis, and how busy the machine was when it was calibrated, if it was."""
        calibration = find_calibration(graph.trace.metadata)
        busy = f" (calibration {calibration.load})" if calibration and calibration.is_disturbed else ""
        return (self.basis or otherwise) + busy


def on_cpu(graph: Graph) -> bool:
    """Whether the CPU does the work: no device runs anything."""
    return not graph.on_device.any()


def needed_calibration(graph: Graph, change: str, *tables: CalibrationTable) -> Calibration:
    """The calibration for a graph's trace; raises NotMeasured if there is none with these tables."""
    metadata = graph.trace.metadata
    if metadata.framework not in ("", "pytorch"):
        raise ChangeError(
            f"{change}: on a CPU this is predicted from times of PyTorch operators; this trace is "
            f"from {metadata.framework}"
        )
    calibration = find_calibration(metadata)
    missing = [table for table in tables if calibration and not getattr(calibration, table)]
    if calibration is None or missing:
        raise NotMeasured(
            f"{change}: on a CPU this depends on the machine, and there is no calibration "
            f"{f'of {missing[0]} ' if missing else ''}for {Machine.of(metadata)}; run `stepscope "
            "calibrate FILE` on the machine that recorded the trace"
        )
    return calibration


def copy_rate(graph: Graph, size: float) -> float | None:
    """Bytes per ns of copying `size` bytes.

    As calibrated; else half of the rate of this step's elementwise work, which reads and writes.
    """
    if size > 0 and (times := calibrated(graph, "copies", [size], 1)):
        return float(size / times[0][0])
    moved = memory_rate(graph)
    return moved / 2 if moved else None


def calibrated(graph: Graph, table: CalibrationTable, at: ArrayLike, *columns: int) -> list[Floats] | None:
    """Columns of a table of the calibration, interpolated at some places, each of shape (places,)."""
    rows = getattr(find_calibration(graph.trace.metadata), table, None)
    if not rows:
        return None
    places = np.asarray(at, np.float64).tolist()
    return [np.array([between(rows, place, column) for place in places]) for column in columns]


def loopback(graph: Graph) -> dict[str, float]:
    """The network inside this machine, as parameters of a change; empty if not calibrated.

    Source: the time of a ring of two in `stepscope.models.whatif.parts.network`: bytes over the
    bandwidth, and two latencies.
    """
    calibration = find_calibration(graph.trace.metadata)
    if calibration is None or not calibration.reducing:
        return {}
    rows = [(row[0], row[1]) for row in calibration.reducing]
    (_, short_ns), (size, long_ns) = min(rows), max(rows)
    return {
        "bandwidth_gbps": round(size * 8 / max(long_ns - short_ns, 1.0), 3),
        "latency_us": round(short_ns / 2e3, 1),
    }
