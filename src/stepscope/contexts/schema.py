"""What a node of the calling-context tree is, and what is measured at it."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.trace.schema import STAGES, Column, Schema

NODE_KINDS = (
    "root",
    "thread",
    "step",
    "annotation",
    "python",
    "module",
    "operator",
    "native",
    "runtime",
    "kernel",
    "memcpy",
    "memset",
    "communication",
    "sync",
    "instruction",
    "unlinked",
    "others",
    "other",
)
VIAS = ("call", "backward", "launch")

NODES = Schema(
    "contexts",
    "one node of the calling-context tree, in preorder: all below a node follow it",
    (
        Column("id", "i32", "row number of the node"),
        Column("parent", "i32", "contexts.id of its caller", nullable=True, refers="contexts"),
        Column("kind", "text", "one of " + ", ".join(NODE_KINDS), values=NODE_KINDS),
        Column(
            "via",
            "text",
            "how it came to be below its parent: called by it, run backward for it, or launched "
            "by it",
            values=VIAS,
        ),
        Column("name", "text", "function, module path, operator or kernel"),
        Column("file", "text", "source file, empty where unknown"),
        Column("line", "i32", "line in it", nullable=True),
        Column("stage", "text", "its stage, where it has one only", nullable=True, values=STAGES),
        Column("module", "text", "path of its module, where it has one only", nullable=True),
        Column("work", "text", "what a kernel computes (events.kind)", nullable=True),
    ),
)


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
        Metric("stalls", "", "samples that found a warp stalled for a reason"),
    )
}
