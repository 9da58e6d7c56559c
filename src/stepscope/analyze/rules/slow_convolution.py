"""`slow_convolution`: convolutions that are far slower than others of equal work."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded
from stepscope.models.whatif.changes.cudnn_benchmark import slow_convolutions
from stepscope.models.whatif.parts.step_work import step_work

_CONVOLUTION = r"^aten::(conv\w*[123]d|convolution_backward)$"
ADVICE = (
    "Set torch.backends.cudnn.benchmark = True. With it, cuDNN times its algorithms once for each size, "
    "instead of choosing by rules of thumb."
)


def slow_convolution(context: RuleContext) -> Iterator[Finding]:
    """Convolutions that take far longer than others of equal work in the same step.

    Silent if shapes were not recorded, on a CPU, and if no other convolution has as many operations,
    the same filters and no fewer bytes.
    """
    if not context.measures.has_device or context.context_trace:
        return
    convolutions = context.search.find(_CONVOLUTION, category="cpu_op")
    gain = context.gains.whatif("cudnn_benchmark") if len(convolutions) else None
    if gain is None:
        return
    graph = context.gains.graph
    work, slow = graph.once(step_work), graph.once(slow_convolutions)
    chosen = np.array(sorted(slow), np.int64)
    chosen = chosen[np.isin(work.operators.rows[chosen], convolutions)]
    if not len(chosen):
        return
    rows = np.sort(work.operators.rows[chosen])
    took, expected = float(work.product_ns[chosen].sum()), sum(slow[row] for row in chosen.tolist())
    rate = float(work.flops[chosen].sum()) / took / 1e3
    steps = len(graph.window.steps)
    yield context.finding(
        f"{rounded(len(chosen) / steps, 4)} convolutions per step take {rounded(took / expected, 2)} times "
        f"as long as equal ones. They take {rounded(took / 1e6 / steps)} ms at {rounded(rate, 2)} TFLOP/s; "
        f"others reach {rounded(rate * took / expected, 2)}.{context.main_place(rows)}",
        ADVICE,
        rows,
        gain,
        recurs=False,
    )
