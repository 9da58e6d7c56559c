"""`cudnn_benchmark`: cuDNN times its algorithms and takes the fastest.

cuDNN chooses an algorithm by rules of thumb unless it may time them. Its choice shows as a convolution that
takes several times as long as others with as many operations, the same filters and no fewer bytes.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Operator
from stepscope.models.kernels.operators import tensors
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.parts.kernel_times import in_half, in_tf32
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork, step_work

_FAR_SLOWER = 2.5  # times; chosen: on an H200 convolutions of equal work differ by up to 2.3 by shape
_EQUAL = 0.05  # of operations; chosen
_FEWER_BYTES = 0.5  # chosen: a convolution that moves more may take longer for that


def cudnn_benchmark(graph: Graph) -> Graph:
    """cuDNN times its algorithms at the first call of each size, and takes the fastest.

    Convolutions that are far slower than others of equal work in this step (as many operations, the
    same filters, no fewer bytes) take the median time of those. The others stay as they are.
    """
    slow = graph.once(slow_convolutions)
    if not slow:
        raise ChangeError(
            "cudnn_benchmark: no convolution is far slower than others of equal work in these steps"
        )
    work = graph.once(step_work)
    changed = {row: KernelTimes(time, float(work.other_ns[row])) for row, time in slow.items()}
    return work.with_kernels(graph, changed)


# Convolutions of a kind compute with the same kernels: direction, filter, groups, precision.
_Kind = tuple[str, tuple[int, ...], bool, str]


class _Shape(NamedTuple):
    """Convolutions of one shape: the rows of `step_work`, and the means of each."""

    rows: list[int]
    flops: float
    moved: float
    time_ns: float


def slow_convolutions(graph: Graph) -> dict[int, float]:
    """The operators of `step_work` that are far slower than equal ones, with those' median time, ns."""
    result: dict[int, float] = {}
    for shapes in _kinds(graph, graph.once(step_work)).values():
        for shape in shapes:
            expected = _of_equal_work(shape, shapes)
            if expected and shape.time_ns > _FAR_SLOWER * expected:
                result |= dict.fromkeys(shape.rows, expected)
    return result


def _of_equal_work(shape: _Shape, shapes: list[_Shape]) -> float:
    """The median time of other shapes of equal work; 0 where there are none."""
    times = [
        other.time_ns
        for other in shapes
        if other is not shape
        and abs(other.flops - shape.flops) <= _EQUAL * shape.flops
        and other.moved >= _FEWER_BYTES * shape.moved
    ]
    return float(np.median(times)) if times else 0.0


def _kinds(graph: Graph, work: StepWork) -> dict[_Kind, list[_Shape]]:
    half, tf32 = work.with_product(in_half(graph)), work.with_product(in_tf32(graph))
    alike: dict[tuple[_Kind, str], list[int]] = defaultdict(list)
    for row, call in enumerate(work.operators.calls):
        if call is None or "conv" not in call.name or not work.flops[row] or not work.product_ns[row]:
            continue
        precision = "half" if half[row] else "tf32" if tf32[row] else ""
        kind = _kind(call, work.forward_call(row), precision)
        if kind is not None:
            alike[kind, call.signature].append(row)
    kinds: dict[_Kind, list[_Shape]] = defaultdict(list)
    for (kind, _), rows in alike.items():
        means = (float(column[rows].mean()) for column in (work.flops, work.moved, work.product_ns))
        kinds[kind].append(_Shape(rows, *means))
    return kinds


def _kind(call: Operator, forward: Operator | None, precision: str) -> _Kind | None:
    """None for a backward convolution whose forward is not known."""
    backward = call.name == "convolution_backward"
    forward = forward if backward else call
    sizes = tensors(forward) if forward else []
    if forward is None or len(sizes) < 2 or min(map(len, sizes[:2])) < 2:
        return None
    wanted = call.values[-1] if backward and call.values else ""
    grouped = "transpose" not in forward.name and sizes[0][1] != sizes[1][1]
    return f"{call.name} {forward.name} {wanted}", sizes[1][2:], grouped, precision


CHANGE = Change(
    cudnn_benchmark,
    group="Compute",
    basis="convolutions of equal work in the same step",
    assumptions=(
        "cuDNN has an algorithm for them that is as fast as that of equal convolutions",
        "sizes repeat from step to step: each new one is timed again",
    ),
    application=Application("`torch.backends.cudnn.benchmark` is set to True"),
)
