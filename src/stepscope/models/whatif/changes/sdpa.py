"""`sdpa`: attention as one fused kernel."""

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.fused_attention import SDPA, fused_kernels
from stepscope.models.whatif.parts.gpu_precision import precisions_of_operators, required_gpu
from stepscope.models.whatif.parts.step_work import step_work


def sdpa(graph: Graph) -> Graph:
    """Attention runs as `F.scaled_dot_product_attention`, in one kernel.

    A softmax between two batched products whose sizes fit is attention. One fused kernel, and two in
    backward, take the time of its operations and bytes; the others go, with what the CPU takes for
    them. Heads of more than 256 numbers stay as they are.
    """
    gpu = required_gpu(graph, "sdpa")
    work = graph.once(step_work)
    fused = fused_kernels(work, gpu, precisions_of_operators(graph, work))
    if not fused:
        raise ChangeError("sdpa: no softmax lies between two batched products whose sizes are attention's")
    replaced = [row for row, kernels in fused.items() if not kernels.multiplied_ns]
    fewer = remove(graph, np.isin(work.of_task, replaced))
    return fewer.once(step_work).with_kernels(fewer, fused).having(SDPA)


CHANGE = Change(
    sdpa,
    group="Compute",
    basis="sizes of attention, and measurements of others on GPUs",
    assumptions=(
        "nothing else reads the scores, and a fused kernel takes their mask",
        "the fused kernel runs as fast as those of its kind on this GPU",
    ),
    error=0.2,
)
