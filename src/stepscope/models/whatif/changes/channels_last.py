"""`channels_last`: images and filters with the channel as the fastest axis."""

import re

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels.products import HALF, Gpu
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.parts.gpu_precision import (
    CHANNELS_LAST,
    NORMS,
    bytes_rate,
    changes_of_layout,
    norm_ns,
    precisions_of_operators,
    required_gpu,
)
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork, step_work

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
    gpu = required_gpu(graph, "channels_last")
    work = graph.once(step_work)
    rows = [row for row, name in enumerate(work.names) if "conv" in name]
    if not any(work.product_ns[row] for row in rows):
        raise ChangeError("channels_last: these steps have no convolutions")
    if all(_is_channels_last(work, row) for row in rows):
        raise ChangeError("channels_last: every convolution has its channels last")
    model = _Layouts(graph, work, gpu)
    changed = {row: model.kernels(row) for row in range(len(work.operators.rows))}
    return work.with_kernels(graph, changed).having(CHANNELS_LAST)


def _is_channels_last(work: StepWork, row: int) -> bool:
    call = work.forward_call(row) or work.call(row)
    strides = call.strides[0] if call and call.strides else []
    return len(strides) > 2 and strides[1] == 1


class _Layouts:
    """The kernels of each operator with channels last."""

    def __init__(self, graph: Graph, work: StepWork, gpu: Gpu) -> None:
        self._work, self._gpu = work, gpu
        self._rate = bytes_rate(graph, gpu)
        self._precision = precisions_of_operators(graph, work)
        self._predicted = HALF in graph.settings
        layout = graph.tasks.text("name").where(lambda name: bool(LAYOUT_KERNELS.search(name)))
        layout &= graph.on_device & (work.of_task >= 0)
        time = graph.tasks["duration_ns"][layout].astype(np.float64)
        count = len(work.operators.rows)
        self._recorded: Floats = np.bincount(work.of_task[layout], time, count).astype(np.float64)

    def kernels(self, row: int) -> KernelTimes:
        """Those of an operator."""
        work, call = self._work, self._work.call(row)
        recorded, precision = work.unchanged(row), self._precision[row]
        if call is None or _is_channels_last(work, row):
            return recorded
        if call.name in NORMS:
            return recorded._replace(other_ns=min(recorded.other_ns, norm_ns(call, precision, self._rate)))
        if "conv" not in call.name:
            return recorded
        lost, count = float(self._recorded[row]), -1
        if self._predicted and precision == HALF:
            lost, kernels = changes_of_layout(call, work.forward_call(row), self._gpu)
            count = int(work.kernels[row]) - kernels
        return recorded._replace(multiplied_ns=max(recorded.multiplied_ns - lost, 0.0), launches=count)


CHANGE = Change(
    channels_last,
    group="Compute",
    basis="sizes of images, and the bandwidth that this step reaches",
    assumptions=(
        "convolutions take as long as they did, without changes of layout",
        "every layer between keeps the layout",
    ),
    error=0.1,
    application=Application(
        "modules and their four-dimensional inputs get `memory_format=torch.channels_last`"
    ),
    memory=lambda memory: memory,
    memory_error=0.04,
)
