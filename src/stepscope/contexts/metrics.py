"""What is measured at the nodes of the calling-context tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One thing measured.

    Attributes:
        name: as the tree's metrics call it.
        unit: `ns`, `B`, or empty for a number.
        meaning: what one sample is.
        additive: whether what is measured below a node adds to the node's own.
    """

    name: str
    unit: str
    meaning: str
    additive: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("cpu_ns", "ns", "a call's time on its CPU thread, less that of its calls"),
        Metric("call_ns", "ns", "a call's time on its CPU thread, its calls included", False),
        Metric("device_ns", "ns", "the time of a piece of device work"),
        Metric("launches", "", "pieces of device work that a call started"),
        Metric("launch_delay_ns", "ns", "from a call to the start of the device work it launched"),
        Metric("allocated_bytes", "B", "an allocation"),
        Metric("freed_bytes", "B", "a release"),
        Metric("sampled_cpu_ns", "ns", "CPU time since the thread's previous sample"),
        Metric("sampled_real_ns", "ns", "time since the thread's previous sample"),
        Metric("stalls", "", "samples of an instruction, by what its warp waited for"),
        Metric("latency_stalls", "", "those of them in whose cycle nothing was issued"),
    )
}
