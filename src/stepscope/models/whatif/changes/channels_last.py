"""`channels_last`: images and filters with the channel as the fastest axis."""

import re

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels.gpu import HALF, SINGLE, Gpu
from stepscope.models.whatif.change import OURS, Application, Change
from stepscope.models.whatif.parts.autocast_flow import effects_of, policy_of
from stepscope.models.whatif.parts.gpu_precision import (
    CHANNELS_LAST,
    NORMS,
    Kernels,
    StepWork,
    changes_of_layout,
    norm_ns,
    precise_gpu,
    step_work,
)
from stepscope.models.whatif.parts.kernel_times import in_half, memory_rate

LAYOUT_KERNELS = re.compile(
    r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|NCHW2NHWC|NHWC2NCHW|batched_transpose_\d"
    r"|transpose_\w*(NHWC|NCHW|nhwc|nchw)|convert_tensor_layout|tensorTransformGeneric"
)
"""Kernels of libraries that change the layout of images."""


def channels_last(graph: Graph) -> Graph:
    """Images and filters have the channel as their fastest axis.

    Convolutions lose the kernels that change layouts, and batch norm takes the time of the bytes
    that it moves. Convolutions themselves take as long as they did: in FP32 the library may choose
    faster or slower kernels. After or before `amp` it applies to 16 bits.
    """
    gpu = precise_gpu(graph)
    if gpu is None:
        raise ChangeError(
            "channels_last: needs shapes and a known NVIDIA GPU; record with `stepscope run`, or "
            "name the device with --device"
        )
    work = graph.once(step_work)
    rows = [row for row, call in enumerate(work.operators.calls) if call and "conv" in call.name]
    if not any(work.product_ns[row] for row in rows):
        raise ChangeError("channels_last: these steps have no convolutions")
    if all(_is_channels_last(work, row) for row in rows):
        raise ChangeError("channels_last: every convolution has its channels last")
    layout = graph.tasks.text("name").where(lambda name: bool(LAYOUT_KERNELS.search(name)))
    layout &= graph.on_device & (work.of_task >= 0)
    model = _Layouts(graph, work, gpu, layout)
    nothing = np.zeros(len(work.operators.rows))
    kernels = [model.kernels(row) for row in range(len(nothing))]
    return work.retimed(graph, kernels, nothing, nothing).having(CHANNELS_LAST)


def _is_channels_last(work: StepWork, row: int) -> bool:
    call = work.forward_call(row) or work.call(row)
    strides = call.strides[0] if call and call.strides else []
    return len(strides) > 2 and strides[1] == 1


class _Layouts:
    """The kernels of each operator with channels last."""

    def __init__(self, graph: Graph, work: StepWork, gpu: Gpu, layout: Mask) -> None:
        self._work, self._gpu = work, gpu
        self._rate = memory_rate(graph) or gpu.bandwidth
        count = len(work.operators.rows)
        self._recorded: Floats = np.bincount(
            work.of_task[layout], graph.tasks["duration_ns"][layout].astype(np.float64), count
        )
        self._half = _computes_in_half(graph, work)
        self._predicted = HALF in graph.settings

    def kernels(self, row: int) -> Kernels:
        work, call = self._work, self._work.call(row)
        product, other = float(work.product_ns[row]), float(work.other_ns[row])
        if call is None or _is_channels_last(work, row):
            return Kernels(product, other)
        if call.name in NORMS:
            precision = HALF if self._half[row] else SINGLE
            return Kernels(product, min(other, norm_ns(call, precision, self._rate)))
        if "conv" not in call.name or not product:
            return Kernels(product, other)
        lost, count = float(self._recorded[row]), -1
        if self._predicted and self._half[row]:
            lost, kernels = changes_of_layout(call, work.forward_call(row), self._gpu)
            count = int(work.kernels[row]) - kernels
        return Kernels(max(product - lost, 0.0), other, count)


def _computes_in_half(graph: Graph, work: StepWork) -> Mask:
    """Operators in 16 bits: as `amp` has it, else those of such kernels or inputs."""
    if HALF in graph.settings:
        return np.array([one.half for one in effects_of(graph, work.operators, policy_of("cuda"))])
    rows = in_half(graph) & graph.on_device & (work.of_task >= 0)
    named = np.bincount(work.of_task[rows], minlength=len(work.operators.rows)) > 0
    typed = [bool(call) and not call.floats for call in work.operators.calls]
    result: Mask = named | np.array(typed, np.bool_)
    return result


CHANGE = Change(
    channels_last,
    group="Compute",
    basis="sizes of images, and the bandwidth that this step reaches",
    assumptions=(
        "convolutions take as long as they did, without changes of layout",
        "every layer between keeps the layout",
    ),
    error=0.1,
    error_source=OURS,
    application=Application(
        "modules and their four-dimensional inputs get `memory_format=torch.channels_last`"
    ),
    memory=lambda memory: memory,
    memory_error=0.04,
)
