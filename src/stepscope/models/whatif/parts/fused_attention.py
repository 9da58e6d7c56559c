"""Attention written as product, softmax and product, and the one kernel that does its work.

The first product makes scores, which are scaled, masked and normalized; the second multiplies them
with values. Backward does the same for gradients, in five products where forward has two. The
fused kernel never writes the scores. Source: Dao, "FlashAttention-2", 2023, sections 3.1 and 4.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.device.kernel_kinds import is_of_library, kind_of
from stepscope.graph import Graph
from stepscope.models.calibration.calibration import Operator
from stepscope.models.kernels.operators import Product, attention_ns, tensors
from stepscope.models.kernels.products import BYTES, Gpu
from stepscope.models.memory.owners import ACTIVE
from stepscope.models.memory.recorded_memory import RecordedMemory
from stepscope.models.whatif.parts.memory_flow import operations
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork, step_work

SDPA = "sdpa"  # setting of a graph: its attention is fused
NEAR = 8  # operators between a product and the softmax: scale, mask, cast, dropout
LARGEST_HEAD = 256  # numbers of a head that fused kernels take: PyTorch, `scaled_dot_product_attention`
VIEWS = (
    *("view", "reshape", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze", "slice"),
    *("select", "narrow", "detach", "flatten", "unflatten", "chunk", "split", "unbind", "contiguous"),
)
_SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
_BATCHED = ("bmm", "baddbmm", "matmul")
_BACKWARD_PRODUCTS = 2.5  # times the operations of forward
_BACKWARD_BYTES = 2.0  # times those of forward


@dataclass(frozen=True)
class Attention:
    """One call of attention."""

    forward: tuple[int, ...]  # its operators, as rows of `StepWork`
    backward: tuple[int, ...]  # the same of its backward; empty in inference
    scores: Product  # its products
    values: Product  # its products

    def kernel_ns(self, precision: str, gpu: Gpu, backward: bool) -> float:
        """The time of the fused kernel, ns."""
        batch, rows, length = self.scores.batch, self.scores.rows, self.scores.columns
        head, out = self.scores.inner, self.values.columns
        flops = 2.0 * batch * rows * length * (head + out)
        moved = float(BYTES[precision] * batch * (rows + length) * (head + out))
        if backward:
            return attention_ns(_BACKWARD_PRODUCTS * flops, _BACKWARD_BYTES * moved, precision, gpu, 2)
        return attention_ns(flops, moved, precision, gpu)


def find_attention(work: StepWork) -> Iterator[Attention]:
    """Each call of attention that a fused kernel could compute."""
    later = np.argsort(work.ahead, kind="stable")
    ahead = work.ahead[later]
    views = np.array([not name or name in VIEWS for name in work.names], np.bool_)
    works = np.flatnonzero(~views & ~work.backward)
    for place in range(len(works)):
        ends = _ends(work, works, place)
        if ends is None:
            continue
        first, last = int(works[ends[0]]), int(works[ends[1]])
        scores, values = work.products(first)[0], work.products(last)[0]
        begin, end = np.searchsorted(ahead, [first, last + 1])
        backward = sorted(row for row in later[begin:end].tolist() if work.backward[row])
        forward = tuple(row for row in range(first, last + 1) if not work.backward[row])
        yield Attention(forward, tuple(backward), scores, values)


def _ends(work: StepWork, works: np.ndarray, place: int) -> tuple[int, int] | None:
    """The places of both products around a softmax, if their sizes are those of attention."""
    if work.names[works[place]] not in _SOFTMAX:
        return None
    first = _next_product(work, works, range(place - 1, max(place - 1 - NEAR, -1), -1))
    last = _next_product(work, works, range(place + 1, min(place + 1 + NEAR, len(works))))
    if first is None or last is None:
        return None
    before, after = (work.products(int(works[end])) for end in (first, last))
    if not before or not after or not _fit(before[0], after[0]):
        return None
    return first, last


def _next_product(work: StepWork, works: np.ndarray, places: range) -> int | None:
    """The nearest operator that multiplies, if it multiplies batches."""
    for place in places:
        row = int(works[place])
        if work.product_ns[row] or work.products(row):
            return place if work.names[row] in _BATCHED else None
    return None


def _fit(scores: Product, values: Product) -> bool:
    same = (scores.batch, scores.rows, scores.columns) == (values.batch, values.rows, values.inner)
    return same and max(scores.inner, values.columns) <= LARGEST_HEAD


def fused_kernels(work: StepWork, gpu: Gpu, precision: Sequence[str]) -> dict[int, KernelTimes]:
    """The kernels of the operators of attention where one kernel does its work, in the precision of each
    operator. The first product of forward, and of backward, stands for it; the others do nothing."""
    result: dict[int, KernelTimes] = {}
    for attention in find_attention(work):
        for rows, backward in ((attention.forward, False), (attention.backward, True)):
            result |= dict.fromkeys(rows, KernelTimes(0.0, 0.0))
            multiplies = next((row for row in rows if work.product_ns[row]), None)
            if multiplies is not None:
                time = attention.kernel_ns(precision[multiplies], gpu, backward)
                result[multiplies] = KernelTimes(time, 0.0, 1 + backward)
    return result


# -- chains of operators that a compiler makes one kernel of, and the bytes that the kernel still moves
# Between products, convolutions and attention, operators on values of one size become one kernel. It
# reads what it did not compute itself, and writes its result and sums, which later layers read. A trace
# does not identify tensors, so the running value is taken for one input of each operator. Source: Ansel
# et al., "PyTorch 2", ASPLOS 2024, sections 4.2 to 4.4.

_FUSES = ("elementwise", "reduction", "normalization", "memset")  # kinds of kernels
# Passes over the largest value: read and written before, and written of the result. Others read each
# input of that size once. Batch norm reads once for statistics and once more; backward of layer norm
# for the gradients of its input and its parameters.
_PASSES = {
    "batch_norm": (2, 1, 1),
    "native_batch_norm_backward": (4, 1, 1),
    "cudnn_batch_norm_backward": (4, 1, 1),
    "native_layer_norm_backward": (4, 1, 1),
    "cross_entropy_loss": (2, 1, 0),
}
_REDUCES = ("sum", "mean", "mse_loss", "nll_loss", "norm", "max", "min", "any", "all", "var", "std")
_SUMS = ("add", "add_")


class Chains(NamedTuple):
    """What is fused, by operator of `StepWork`; shape (operators,) each."""

    inside: Mask  # whether it is compiled: it belongs to a module, as far as any does
    group: Ids  # the first operator of its chain; -1 if it stays as it is
    least: Floats  # the share of its bytes that still move, if intermediate values are written nowhere
    most: Floats  # the same if all of them are written
    moved: Floats  # elements that still move with `least`


def fused_chains(graph: Graph) -> Chains:
    """The chains of a graph's forward and backward."""
    work = graph.once(step_work)
    rows = work.operators.rows
    modules = graph.trace.events["module"][rows] >= 0
    inside = modules if modules.any() else np.ones(len(rows), np.bool_)
    elements, read, written, result = np.array([_passes(call) for call in work.operators.calls], np.float64).T
    group, is_last = _groups(graph, work, inside & _fusible(graph, work), elements)
    reads = np.maximum(read - (group != np.arange(len(rows))), 0)
    kept = reads + np.where(is_last | (np.isin(work.names, _SUMS) & (read > 1)), result, 0)
    whole = np.maximum(read + written, 1)
    return Chains(
        inside,
        group,
        least=kept / whole,
        most=(reads + np.where(is_last, result, written)) / whole,
        moved=kept * elements,
    )


def _groups(graph: Graph, work: StepWork, fuses: Mask, elements: Floats) -> tuple[Ids, Mask]:
    """The first operator of each one's chain, or -1; and whether it is the last."""
    chain = np.cumsum((work.device_ns > 0) & ~fuses)
    step, track = (graph.trace.events[name][work.operators.rows] for name in ("step", "track"))
    members = np.flatnonzero(fuses)
    key = np.stack([step, track, work.backward, chain, elements])[:, members]
    _, first, number = np.unique(key, axis=1, return_index=True, return_inverse=True)
    group = np.full(len(fuses), -1, np.int64)
    group[members] = members[first][number.ravel()]
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, number.ravel(), members)
    return group, np.isin(np.arange(len(fuses)), last) & fuses


def _fusible(graph: Graph, work: StepWork) -> Mask:
    """Operators of known size all of whose device work is fused."""
    device = graph.on_device & (work.of_task >= 0)
    names = graph.tasks.text("name")
    fuses = graph.tasks.text("kind").mask(*_FUSES) & ~names.where(is_of_library)
    fuses |= names.where(lambda name: name.startswith("Memcpy DtoD"))
    others = np.bincount(work.of_task[device & ~fuses], minlength=len(work.device_ns))
    sized = np.array([_passes(call)[0] > 0 for call in work.operators.calls], np.bool_)
    return sized & (work.device_ns > 0) & (others == 0)


def _passes(call: Operator | None) -> tuple[int, int, int, int]:
    """Elements of the largest value, and passes: read, written, written of the result."""
    sizes = [prod(size) for size in tensors(call)] if call else []
    largest = max(sizes, default=0)
    if call is None or not largest:
        return 0, 1, 1, 1
    if call.name in _PASSES:
        return largest, *_PASSES[call.name]
    written = int(call.name not in _REDUCES)
    return largest, sizes.count(largest), written, written


# -- memory


def without_intermediates(memory: RecordedMemory) -> RecordedMemory:
    """The memory in which what only fused operators read is computed again, and never written;
    raises ChangeError if the capture has no tensors."""
    recording = memory.recording
    if not len(recording.trace["tensor_uses"]):
        raise ChangeError("compile: memory is predicted from captures of `stepscope run --memory --shapes`")
    module = recording.trace.events["module"]
    names = recording.trace.events.text("name")
    read, stays = np.zeros((2, len(recording)), np.bool_)
    for operation in operations(recording):
        name = str(names[operation.root]).removeprefix("aten::")
        fuses = module[operation.root] >= 0 and (name in VIEWS or kind_of(f"aten::{name}") in _FUSES)
        read[operation.reads] = True
        if not fuses:
            stays[operation.reads] = True
        if not fuses or name in _SUMS:
            stays[operation.makes] = True
    gone = np.append(read & ~stays, False)[memory.lifetimes.recorded]
    gone &= np.isin(memory.lifetimes.kind, ACTIVE)
    life = memory.lifetimes
    return memory.with_lifetimes(life.changed(bytes=np.where(gone, 0, life.bytes)))
