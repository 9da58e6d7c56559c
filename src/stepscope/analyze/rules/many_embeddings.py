"""`many_embeddings`: embedding tables that are looked up one by one."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

CAUSE = "forward_backward"
MANY = 8  # tables; chosen: below, their launches are few
SHORT_NS = 10_000  # chosen: a kernel that is longer moves data, which one table moves too
_DENSE = r"^aten::(embedding_dense_backward|_embedding_bag_dense_backward)$"
_LOOKUP = r"^aten::(embedding|embedding_bag|_embedding_bag)$"
ADVICE = (
    "Keep tables of equal width in one nn.EmbeddingBag, or use a library that does (fbgemm_gpu, torchrec). "
    "Add the first row of each to its indices; each table's gradient is else sorted on its own. "
    "SparseAdam with sparse=True avoids gradients of whole tables."
)


def many_embeddings(context: RuleContext) -> Iterator[Finding]:
    """Many embedding tables that are looked up one by one, with dense gradients.

    Silent for fewer than 8 tables a step, on a CPU, and where their kernels take longer than 10 us
    on average: these move data, which a single table moves too.
    """
    if not context.measures.has_device or context.context_trace:
        return
    dense = context.search.outermost(context.search.find(_DENSE, category="cpu_op"))
    tables = context.measures.calls(dense)
    kernels = context.search.find(inside=dense, on_device=True, category="kernel")
    if tables < MANY or not len(kernels) or context.events["duration_ns"][kernels].mean() > SHORT_NS:
        return
    lookups = context.search.outermost(context.search.find(_LOOKUP, category="cpu_op"))
    rows = context.search.with_backward(lookups)
    rows = np.union1d(rows, dense[~context.search.within(rows)[dense]])
    yield context.finding(
        f"{rounded(tables, 4)} embedding tables per step are looked up one by one."
        f"{context.main_place(lookups if len(lookups) else dense)} Their dense gradients take "
        f"{rounded(context.measures.calls(kernels), 4)} kernels, {rounded(context.measures.ms(kernels))} ms.",
        ADVICE,
        rows,
        context.gains.scaled(rows, 1 / tables, "at most: one lookup in place of all of them"),
    )
