"""The operators of a step on a GPU in another precision: kernels by shape, casts as work of their own.

Products, convolutions, attention and recurrent layers run other kernels in another precision, so their time
follows from shapes (`models.kernels`), not from the recorded time. Other kernels keep the part of their time
in which they move no bytes. Casts cost the device two passes over a value, and the CPU a call.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from stepscope.base.arrays import Floats, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Operator
from stepscope.models.calibration.device_calibration import calibrated_share, find_device_calibration
from stepscope.models.kernels.operators import (
    ATTENTION,
    WEIGHTED,
    Convolution,
    Product,
    attention_ns,
    launches_of,
    products_ns,
    tensors,
    transposing_ns,
)
from stepscope.models.kernels.products import BYTES, HALF, SINGLE, TF32, Gpu, bandwidth_reached, find_gpu
from stepscope.models.whatif.parts.autocast_flow import Effect, effects_of, policy_of
from stepscope.models.whatif.parts.fused_attention import SDPA, fused_kernels
from stepscope.models.whatif.parts.kernel_times import device_of, in_half, in_tf32, memory_rate
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork, step_work

# Products take at most so many times as long, or as short, as predicted: 95 % of those in the tables
# of `kernels.products` on a device that was left out.
_LONGER = {"typical": 1.0, "low": 1.35, "high": 1 / 1.35}
CHANNELS_LAST, ALIGNED_ROWS = "channels_last", "aligned_rows"  # settings of a graph
FLOOR_NS = 1000.0  # of a kernel that moves nothing, on any device: the shortest ones of an H200
_SIXTEEN_BITS = ("c10::BFloat16", "c10::Half")
_LAYOUTS = re.compile("conv|norm")  # operators whose time depends on the layout of images
NORMS = ("batch_norm", "cudnn_batch_norm_backward", "native_batch_norm_backward")
_NATIVE_NORM = 1.2  # of FP32's time: batch norm leaves cuDNN in bfloat16; ResNet-50, U-Net on an H200


def precise_gpu(graph: Graph) -> Gpu | None:
    """The graph's GPU, if products can be predicted there: its rates are known, and shapes are."""
    gpu = find_gpu(device_of(graph))
    return gpu if gpu is not None and graph.once(_has_shapes) else None


def required_gpu(graph: Graph, change: str) -> Gpu:
    """The same; raises ChangeError without one."""
    if gpu := precise_gpu(graph):
        return gpu
    if find_gpu(device := device_of(graph)):
        raise ChangeError(f"{change}: needs the shapes of operators; record with `stepscope run`")
    none = "the trace names none; use the option device"
    named = f"this is {device['name']}" if device.get("name") else none
    raise ChangeError(f"{change}: needs a known NVIDIA GPU, and {named}")


def _has_shapes(graph: Graph) -> bool:
    return any(call is not None for call in graph.once(step_work).operators.calls)


def autocast_on_gpu(graph: Graph, gpu: Gpu, estimate: str = "typical", bfloat: bool = True) -> Graph:
    """Forward and backward under `torch.autocast` to bfloat16, else float16, as CUDA's policy has
    it; with products slower (`low`) or faster (`high`) than predicted, or as fast (`typical`).
    Raises ChangeError if nothing computes in FP32."""
    work = graph.once(step_work)
    effects, products = _effects(graph, work), policy_of("cuda").lowered
    if not any(effect.half for effect, name in zip(effects, work.names, strict=True) if name in products):
        raise ChangeError("amp: no matrix product or convolution runs in 32 bits")
    rate = memory_rate(graph) or bandwidth_reached(gpu)
    timed = _timed_operators(graph, work, HALF)
    model = _Autocast(work, gpu, effects, rate, bfloat, _LONGER[estimate], graph.settings, timed)
    rows = range(len(effects))
    casts = [(*effect.down, *effect.up) for effect in effects]
    moving = np.array([sum(_cast_ns(size, rate) for size in sizes) for sizes in casts])
    calls = np.array([len(sizes) for sizes in casts]) * work.simple_call_ns[work.backward.astype(np.int8)]
    kernels = {row: model.kernels(row) for row in rows}
    if SDPA in graph.settings:
        kernels |= fused_kernels(work, gpu, [HALF] * len(rows))
    return work.with_kernels(graph, kernels, (moving, calls)).having(HALF)


def tf32_on_gpu(graph: Graph, gpu: Gpu) -> Graph:
    """FP32 products and convolutions in TF32."""
    work = graph.once(step_work)
    rows = range(len(work.operators.rows))
    pads, timed = ALIGNED_ROWS in graph.settings, _timed_operators(graph, work, TF32)
    kernels = {row: _in_tf32(work, gpu, row, pads, timed) for row in rows}
    if SDPA in graph.settings:
        kernels |= fused_kernels(work, gpu, [TF32] * len(rows))
    return work.with_kernels(graph, kernels).having(TF32)


def _in_tf32(work: StepWork, gpu: Gpu, row: int, pads: bool, timed: Mapping[int, float]) -> KernelTimes:
    call = work.call(row)
    recorded, other = float(work.product_ns[row]), float(work.other_ns[row])
    products = work.products(row, pads) if call and call.floats else []
    if not products or not recorded:
        return KernelTimes(recorded, other)
    if row in timed:
        count = -1 if work.cells_ns[row] else launches_of(products)
        return KernelTimes(timed[row] * recorded, timed[row] * other, count)
    if work.cells_ns[row]:
        return KernelTimes(min(products_ns(products, TF32, gpu) + float(work.cells_ns[row]), recorded), other)
    return KernelTimes(min(products_ns(products, TF32, gpu), recorded), other, launches_of(products))


def _timed_operators(graph: Graph, work: StepWork, precision: str) -> dict[int, float]:
    """By operator: its time in a precision over that as recorded, as far as this device is calibrated.

    Convolutions and norms were timed in the recorded layout, and products with the recorded rows.
    """
    calibration = find_device_calibration(graph.trace.metadata)
    if calibration is None:
        return {}
    images, rows = CHANNELS_LAST in graph.settings, ALIGNED_ROWS in graph.settings
    as_tf32 = work.with_product(in_tf32(graph))
    found = {
        row: calibration.ratio(call.signature, precision, TF32 if as_tf32[row] else SINGLE)
        for row, call in enumerate(work.operators.calls)
        if call and not (images and _LAYOUTS.search(call.name)) and not (rows and work.products(row))
    }
    return {row: ratio for row, ratio in found.items() if ratio is not None}


def calibrated_time(graph: Graph) -> tuple[str, ...]:
    """A sentence about the share of device time whose operators were timed on this device."""
    calibration = find_device_calibration(graph.trace.metadata)
    if calibration is None:
        return ()
    share = calibrated_share(graph.trace, calibration)
    return (
        f"operators with {share:.0%} of the device time of forward and backward gain what they gained "
        f"alone ({calibration}); the others by their sizes",
    )


def precisions_of_operators(graph: Graph, work: StepWork) -> list[str]:
    """The precision that each operator computes in: as changes have set it, else as recorded."""
    half, tf32 = _recorded_in_half(graph, work), work.with_product(in_tf32(graph))
    if HALF in graph.settings:
        half |= [effect.half for effect in _effects(graph, work)]
    if TF32 in graph.settings:
        tf32[:] = True
    return np.where(half, HALF, np.where(tf32, TF32, SINGLE)).tolist()


def _recorded_in_half(graph: Graph, work: StepWork) -> Mask:
    types = (call.types if call else () for call in work.operators.calls)
    typed = [any(kind in _SIXTEEN_BITS for kind in each) for each in types]
    return work.with_product(in_half(graph)) | np.array(typed, np.bool_)


def _effects(graph: Graph, work: StepWork) -> list[Effect]:
    """The effect of autocast on each operator; none where it was recorded in 16 bits, as its forward."""
    stays = _recorded_in_half(graph, work)
    stays |= np.append(stays, False)[work.ahead]
    effects = effects_of(graph, work.operators, policy_of("cuda"))
    return [Effect() if same else effect for effect, same in zip(effects, stays.tolist(), strict=True)]


def fused_casts_ns(graph: Graph, work: StepWork) -> Floats:
    """The time of casts under `amp` that a compiler fuses: all but those of weights and their gradients."""
    gpu, nothing = precise_gpu(graph), np.zeros(len(work.operators.rows))
    if HALF not in graph.settings or gpu is None:
        return nothing
    rate = bytes_rate(graph, gpu)
    for row, effect in enumerate(_effects(graph, work)):
        call = work.forward_call(row) or work.call(row)
        weights = [prod(size) for size in call.floats[1:]] if call and call.name in WEIGHTED else []
        sizes = [size for size in (*effect.down, *effect.up) if size not in weights]
        nothing[row] = sum(_cast_ns(size, rate) for size in sizes)
    return nothing


def bytes_rate(graph: Graph, gpu: Gpu) -> float:
    """How fast kernels move bytes, per ns, also of a graph that a change has made."""
    # After `amp` kernels move fewer bytes than their recorded shapes say, and seem too fast.
    return min(memory_rate(graph) or np.inf, bandwidth_reached(gpu))


def _cast_ns(elements: int, rate: float) -> float:
    """Reads a value in one precision and writes it in the other."""
    return (BYTES[SINGLE] + BYTES[HALF]) * elements / rate + FLOOR_NS


def changes_of_layout(call: Operator, forward: Operator | None, gpu: Gpu) -> tuple[float, int]:
    """The time and number of kernels that change layouts around a convolution in 16 bits.

    It computes with channels last: values of other layouts are changed, and changed back.
    """
    backward = call.name == "convolution_backward"
    convolution = Convolution.of(forward if backward and forward else call) if "conv" in call.name else None
    if convolution is None or convolution.channels_last:
        return 0.0, 0
    passes = 2 if backward else 1
    return passes * (transposing_ns(convolution.inputs + convolution.results, gpu) + 2 * FLOOR_NS), 2 * passes


def norm_ns(call: Operator, precision: str, rate: float) -> float:
    """The time of batch norm with channels last, by its bytes at so many per ns.

    Forward reads its input twice and writes once; backward reads two values twice and writes one.
    """
    passes = 5 if call.name.endswith("backward") else 3
    size = float(np.prod(next(iter(tensors(call)), (0,))))
    return passes * BYTES[precision] * size / rate + 2 * FLOOR_NS


@dataclass(frozen=True, eq=False)
class _Autocast:
    """Device time of each operator under autocast."""

    work: StepWork
    gpu: Gpu
    effects: list[Effect]
    rate: float  # bytes per ns of this step's elementwise work
    bfloat: bool  # whether 16 bits are bfloat16, else float16
    longer: float  # than predicted that products take, as a factor
    settings: frozenset[str]  # of the graph
    # time in 16 bits over that in FP32, of operators that were timed on this device
    timed: Mapping[int, float]

    def kernels(self, row: int) -> KernelTimes:
        """The kernels of an operator, without its casts; as timed on this device, if it was."""
        kernels = self._by_size(row)
        if row not in self.timed or not self._computes_in_half(row):
            return kernels
        # The sum was timed; its parts are divided as by size.
        longer = self.timed[row] * float(self.work.device_ns[row]) / max(sum(kernels[:2]), 1.0)
        return kernels._replace(
            multiplied_ns=longer * kernels.multiplied_ns, other_ns=longer * kernels.other_ns
        )

    def _by_size(self, row: int) -> KernelTimes:
        work, call = self.work, self.work.call(row)
        recorded, other = float(work.product_ns[row]), float(work.other_ns[row])
        if call is None or not self._computes_in_half(row):
            return KernelTimes(recorded, other)
        if call.name in NORMS and CHANNELS_LAST in self.settings:
            return KernelTimes(recorded, min(other, norm_ns(call, HALF, self.rate)))
        if call.name in NORMS and self.bfloat:
            return KernelTimes(recorded * _NATIVE_NORM, other * _NATIVE_NORM)
        if not recorded:
            return KernelTimes(recorded, self._moving_ns(row))
        if "attention" in call.name:
            return KernelTimes(self._attention_ns(row, call), self._moving_ns(row))
        products = work.products(row, ALIGNED_ROWS in self.settings)
        if not products:
            return KernelTimes(self._halved_ns(recorded, row), self._moving_ns(row))
        if work.cells_ns[row]:
            return self._recurrent(row, products)
        # No library takes kernels that are slower than those of FP32.
        multiplied = min(products_ns(products, HALF, self.gpu) * self.longer, recorded)
        layouts_ns, layouts = 0.0, 0
        if CHANNELS_LAST not in self.settings:
            layouts_ns, layouts = changes_of_layout(call, work.forward_call(row), self.gpu)
        return KernelTimes(multiplied + layouts_ns, self._moving_ns(row), launches_of(products) + layouts)

    def _recurrent(self, row: int, products: Sequence[Product]) -> KernelTimes:
        """cuDNN launches one kernel for an element of a sequence, where in FP32 it launches a
        product, its parts' sum and a cell: an LSTM on an H200, one model."""
        count = launches_of(products)
        time = products_ns(products, HALF, self.gpu) * self.longer + float(self.work.cells_ns[row])
        launches = float(self.work.launches[row])
        return KernelTimes(time, self._moving_ns(row), count, min(count / max(launches, 1), 1.0))

    def _computes_in_half(self, row: int) -> bool:
        ahead = int(self.work.ahead[row])
        is_recurrent = ahead >= 0 and self.work.backward[row] and "rnn" in self.work.names[row]
        return self.effects[ahead if is_recurrent else row].half

    def _attention_ns(self, row: int, call: Operator) -> float:
        """Forward reads three values and writes one; backward reads five and writes three."""
        backward = call.name not in ATTENTION
        elements = sum(np.prod(size, dtype=np.float64) for size in tensors(call))
        moved = BYTES[HALF] * elements * (8 / 5 if backward else 4 / 3)
        return attention_ns(float(self.work.flops[row]), moved, HALF, self.gpu, 1 + backward)

    def _moving_ns(self, row: int) -> float:
        """Kernels that multiply nothing, with half of their bytes."""
        return self._halved_ns(float(self.work.other_ns[row]), row)

    def _halved_ns(self, time: float, row: int) -> float:
        """A time with half of the bytes: what it is longer than bytes need does not shrink."""
        floor = min(time, float(self.work.kernels[row]) * FLOOR_NS)
        if time <= floor:
            return time
        moved = float(self.work.moved[row])
        bound = min(1.0, moved / (time - floor) / self.rate) if moved else 1.0
        return floor + (time - floor) * (1 - bound / 2)
