"""The graph of a CPU step with its work on a device instead, predicted from operation counts.

A kernel takes a fixed time and its roofline time at half of the device's peak rates; the CPU takes
a fixed time to launch it. How far that is from real devices:
docs/evidence/accuracy/other_devices.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepscope.arrays import Floats
from stepscope.devices.device_work import LaunchedKernels, find_device_work, replaced_tasks
from stepscope.graph import Graph, add_links, add_thread, append
from stepscope.trace.schema import FORWARD_STAGES
from stepscope.whatif.parts.kernel_times import FIXED_NS, Rates, peak_rate

EFFICIENCY = 0.5  # of the peak rates, for products and for memory
COUNTING_ERROR = 1.7  # devices took at most so many times as long or as short
_PER_SAMPLE = (*FORWARD_STAGES, "backward")
_TF32_SINCE = 8  # compute capability


class OffloadEstimate(NamedTuple):
    """How fast to assume the device and the CPU that launches its work.

    Attributes:
        longer: factor on the duration of kernels.
        launch_ns: CPU time per kernel.
    """

    longer: float
    launch_ns: int


TYPICAL = OffloadEstimate(1.0, 10_000)
FAST = OffloadEstimate(1 / COUNTING_ERROR, 5_000)
SLOW = OffloadEstimate(COUNTING_ERROR, 40_000)


def offload(
    graph: Graph, rates: Rates, samples: float = 1.0, estimate: OffloadEstimate = TYPICAL
) -> Graph:
    """The same steps with the work of the training stages on a device.

    Stages on the CPU, such as loading data, take as long as they did.

    Args:
        graph: of steps that ran on a CPU.
        rates: the device's data sheet, as from `rates_of`.
        samples: how many times as many samples a step has.
        estimate: how fast to assume the device.

    Raises:
        ChangeError: if the operations of half of the step or more are unknown.
    """
    work = find_device_work(graph)
    stage = graph.tasks.text("stage").take(work.task)
    growth = np.where(stage.mask(*_PER_SAMPLE), samples, 1.0)
    time = kernels_ns(work, rates, growth) * estimate.longer / work.known
    columns = {name: graph.tasks[name][work.task].astype(np.int64) for name in ("step", "module")}
    kinds = graph.trace.events.text("kind").take(work.event)
    names = [str(name) for name in graph.trace.events.text("name").take(work.event)]
    host = _with_launches(graph, work, samples, estimate.launch_ns)
    host, stream = add_thread(host, str(rates["name"]), "device", 0)
    moved, kernels = append(
        host, stream, names, duration_ns=np.rint(time).astype(np.int64), category="kernel",
        kind=kinds, stage=stage, **columns,
    )  # fmt: skip
    # The stream is the last thread, so the ids of all other tasks are unchanged.
    return add_links(moved, work.launch, kernels, "launch", estimate.launch_ns)


def kernels_ns(work: LaunchedKernels, rates: Rates, growth: Floats) -> Floats:
    """Duration of each kernel, ns.

    Args:
        work: of the kernels.
        rates: the device's data sheet.
        growth: factor on the operations and bytes of each kernel.
    """
    computing = work.flops / (_peaks(work, rates) * 1e3)
    moving = work.bytes / float(rates["bandwidth"])
    return np.asarray(FIXED_NS + growth * np.maximum(computing, moving) / EFFICIENCY, np.float64)


def _peaks(work: LaunchedKernels, rates: Rates) -> Floats:
    """TFLOPS for each kernel; convolutions use TF32 where PyTorch's default does."""
    peak = np.full(len(work.flops), float(rates["fp32"]))
    for name in ("half", "tf32"):
        peak[work.product & work.precision.mask(name)] = peak_rate(rates, name)
    if int(rates.get("major") or 0) >= _TF32_SINCE:
        convolution = work.is_convolution & work.precision.mask("fp32")
        peak[convolution] = peak_rate(rates, "tf32")
    return peak


def _with_launches(graph: Graph, work: LaunchedKernels, samples: float, launch_ns: int) -> Graph:
    """The CPU's tasks: launches in the training stages, the others as they were."""
    training = replaced_tasks(graph)
    loading = np.where(graph.tasks.text("stage").mask("data_loading"), samples, 1.0)
    duration = np.where(training, 0, np.rint(graph.tasks["duration_ns"] * loading))
    duration[work.launch] = np.maximum(duration[work.launch], launch_ns)
    gap = np.where(training, 0, graph.tasks["gap_ns"])
    return graph.with_tasks(duration_ns=duration.astype(np.int64), gap_ns=gap)
