"""`cudnn_benchmark`: cuDNN times its algorithms and takes the fastest."""

from stepscope.errors import ChangeError
from stepscope.graph import Graph
from stepscope.models.whatif.change import Application, Change
from stepscope.models.whatif.parts.equal_work import slow_convolutions
from stepscope.models.whatif.parts.step_work import KernelTimes, step_work


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
