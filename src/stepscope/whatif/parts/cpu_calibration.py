"""The machine's calibration, for predictions where the CPU does the work."""

from __future__ import annotations

from stepscope.calibration import Calibration, Machine, find_calibration
from stepscope.errors import ChangeError, NotMeasured
from stepscope.graph import Graph
from stepscope.whatif.parts.kernel_times import memory_rate


def on_cpu(graph: Graph) -> bool:
    """Whether the CPU does the work: no device runs anything."""
    return not graph.on_device.any()


def copy_rate(graph: Graph, size: float) -> float | None:
    """Bytes per ns of copying `size` bytes; None if unknown.

    As calibrated; else half of the rate of this step's elementwise work, which reads and writes.
    """
    found = find_calibration(graph.trace.metadata)
    rate = found.copy_rate(size) if found else None
    moved = memory_rate(graph) if rate is None else None
    return moved / 2 if moved else rate


def disturbed_calibration(graph: Graph) -> Calibration | None:
    """The calibration for a graph's trace if other processes disturbed it, else None."""
    found = find_calibration(graph.trace.metadata)
    return found if found is not None and found.is_disturbed else None


def needed_calibration(graph: Graph, change: str) -> Calibration:
    """The calibration for a graph's trace.

    Raises:
        ChangeError: if there is none; the message shows how to make one.
    """
    metadata = graph.trace.metadata
    if metadata.framework not in ("", "pytorch"):
        raise ChangeError(
            f"{change}: on a CPU this is predicted from times of PyTorch operators; this trace is "
            f"from {metadata.framework}"
        )
    found = find_calibration(metadata)
    if found is None:
        raise NotMeasured(
            f"{change}: on a CPU this depends on the machine, and there is no calibration for "
            f"{Machine.of(metadata)}; run `stepscope calibrate FILE` on the machine that recorded "
            "the trace"
        )
    return found
