"""`pad_to_aligned`: matrix products of sizes whose rows begin at multiples of 16 bytes."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.kernels.operators import padded, products_ns
from stepscope.models.kernels.products import ALIGNED, BYTES, HALF, SINGLE, TF32, Gpu
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.gpu_precision import ALIGNED_ROWS, precisions_of_operators, required_gpu
from stepscope.models.whatif.parts.step_work import KernelTimes, StepWork, step_work


def pad_to_aligned(graph: Graph) -> Graph:
    """Sizes of matrix products are padded, so that their rows begin at multiples of 16 bytes.

    Tensor cores are fed by copies of 16 bytes: 8 numbers of 16 bits. Products whose rows begin
    elsewhere, such as those of a vocabulary of 50,257, run at a fraction of the rate. Combine it
    with `amp` or `tf32` where the steps were recorded in FP32, which loses nothing.
    """
    gpu = required_gpu(graph, "pad_to_aligned")
    work = graph.once(step_work)
    if not misaligned(work):
        raise ChangeError("pad_to_aligned: every matrix product has rows of multiples of 16 bytes")
    precision = precisions_of_operators(graph, work)
    predicted = not graph.settings.isdisjoint((HALF, TF32))
    changed = {row: _padded(work, gpu, row, precision[row], predicted) for row in misaligned(work)}
    return work.with_kernels(graph, changed).having(ALIGNED_ROWS)


def odd_sizes(graph: Graph) -> list[int]:
    """Sizes of rows that are not multiples of 16 bytes, in elements, largest first."""
    work = graph.once(step_work)
    lines = {line for row in misaligned(work) for size in work.products(row) for line in size.lines}
    return sorted((line for line in lines if line % (ALIGNED // BYTES[HALF])), reverse=True)


def misaligned(work: StepWork) -> list[int]:
    """The operators whose products gain by aligned rows in 16 bits."""
    rows = range(len(work.operators.rows))
    return [row for row in rows if any(padded(size) != size for size in work.products(row))]


def _padded(work: StepWork, gpu: Gpu, row: int, precision: str, predicted: bool) -> KernelTimes:
    """Less by as much as predicted; of a recorded time, by the same share."""
    now, products = work.unchanged(row), work.products(row)
    if precision == SINGLE or not now.multiplied_ns:
        return now
    before, after = (products_ns(sizes, precision, gpu) for sizes in (products, list(map(padded, products))))
    saved = max(before - after, 0.0) * (1 if predicted else now.multiplied_ns / before)
    return now._replace(multiplied_ns=max(now.multiplied_ns - saved, min(after, now.multiplied_ns)))


CHANGE = Change(
    pad_to_aligned,
    group="Compute",
    basis="sizes of products, and measurements of others on GPUs",
    assumptions=(
        "padded products run as fast as aligned products of their sizes on this kind of GPU",
        "other work on padded values takes as long as it did",
    ),
    error=0.2,
    memory=lambda memory: memory,
)
