"""What CPU-only predictions need to know of the machine, and say of it."""

from __future__ import annotations

from stepscope.calibration import Calibration, Machine, find_calibration
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.whatif.roofline import memory_rate


def on_cpu(graph: Graph) -> bool:
    """Whether operators are the work: no device runs anything."""
    return not graph.on_device.any()


def copy_rate(graph: Graph, size: float) -> float | None:
    """Bytes a nanosecond that are copied where `size` bytes are, None where that is not known.

    As calibrated; else half of what this step's own elementwise work reads and writes.
    """
    found = find_calibration(graph.trace.metadata)
    rate = found.copy_rate(size) if found else None
    moved = memory_rate(graph) if rate is None else None
    return moved / 2 if moved else rate


def needed_calibration(graph: Graph, change: str) -> Calibration:
    """The calibration that holds for a graph's trace.

    Raises:
        ChangeError: if there is none; the message says how to make one.
    """
    metadata = graph.trace.metadata
    if metadata.framework not in ("", "pytorch"):
        raise ChangeError(
            f"{change}: on a CPU this is predicted from what PyTorch's operators take on the "
            f"machine; this trace is of {metadata.framework}"
        )
    found = find_calibration(metadata)
    if found is None:
        raise ChangeError(
            f"{change}: on a CPU this depends on the machine, and there is no calibration for "
            f"{Machine.of(metadata)}; run `stepscope calibrate FILE` on the machine of the trace"
        )
    return found
