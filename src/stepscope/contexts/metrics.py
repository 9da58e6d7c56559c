"""The metrics of the calling-context tree."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric of the nodes.

    Attributes:
        name: its key in the tree's metrics.
        unit: `ns`, `B`, or empty for a number.
        meaning: what one sample measures.
        additive: whether a node's inclusive value is the sum over its subtree.
    """

    name: str
    unit: str
    meaning: str
    additive: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("cpu_ns", "ns", "time of a call on its CPU thread, without nested calls"),
        Metric("call_ns", "ns", "time of a call on its CPU thread, with nested calls", False),
        Metric("device_ns", "ns", "duration of a device operation"),
        Metric("compiled_ns", "ns", "duration of a compiled operation, in the recorded windows"),
        Metric("launches", "", "device operations that a call launched"),
        Metric(
            "launch_delay_ns", "ns", "time from a call to the start of the device work it launched"
        ),
        Metric("allocated_bytes", "B", "an allocation"),
        Metric("freed_bytes", "B", "a release"),
        Metric("thread_cpu_ns", "ns", "CPU time of the calling thread, without waiting"),
        Metric("sampled_cpu_ns", "ns", "CPU time since the thread's previous sample"),
        Metric("sampled_real_ns", "ns", "time since the thread's previous sample"),
        Metric("stalls", "", "samples of an instruction, by stall reason of its warp"),
        Metric("latency_stalls", "", "stall samples in whose cycle nothing was issued"),
    )
}
