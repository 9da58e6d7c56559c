"""`forward_backward`: operators with a slow backward pass (4.3, 3)."""

import re
from collections.abc import Iterator
from math import prod

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext, glob
from stepscope.analyze.source_places import are_of_pytorch
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import rows_by_key

_NODE = re.compile(r"^.*[: ]|Backward\d*$")
# Nodes of a `torch.autograd.Function`, which have no number, as one that `torch.library.custom_op` makes.
_OWN_NODE = re.compile(r"(?:^|[: ])(?!Checkpoint)(?:GeneratedBackwardFor_)?(\w+?)(?:_default)?Backward$")
_EMBEDDING = (
    "The gradient is as large as the table although the batch uses few rows. Use sparse=True in the table, "
    "with an optimizer that accepts sparse gradients (SGD, SparseAdam, Adagrad), or a smaller table."
)
_VIEWS = tuple(f"aten::{name}" for name in ("slice", "select", "narrow", "as_strided", "diagonal"))
_VIEW = (
    "Each view gets a gradient as large as the whole tensor. Take all parts at once (split, chunk, unbind)."
)
_OTHER = "A factor of two is usual. Look for an equivalent operator with a cheaper gradient."
_OWN = "A factor of two is usual. PyTorch did not write this backward: keep more, or run fewer kernels."
_TABLES = ("aten::embedding", "aten::_embedding_bag")
_SPARSE = "aten::embedding_sparse_backward"  # a gradient of the rows in use alone
_SPECIAL = (*_VIEWS, *_TABLES)  # no ratio: the forward pass does next to nothing
FEW = 4.0  # rows of a table for each index: a sparse gradient then saves most of the update
RATIO = 8.0  # a power or a mean reaches 5
OWN_RATIO = 4.0  # chosen: fused attention has 2.5 times the operations, at three quarters of the rate
LEAST_FORWARD_NS = 5_000  # less is no real work
USUAL = 2.0  # a product has two gradients


def forward_backward(context: RuleContext) -> Iterator[Finding]:
    """Operators whose backward takes more than 8 times their forward (the user's 4), and 5 % of the step.

    DEEPCONTEXT marks more than 2 times. In 11 recordings of GPUs these are one defect, of 17 times, and
    five products and convolutions of 2.0 to 3.7, which have two gradients; a power or a mean reaches
    five. Who wrote an operator or a function can change its backward.

    The gradient of an embedding table that is far larger than the batch counts with the update.

    Silent if the trace does not link backward to forward, or links operators of different names. Indexing has
    a rule of its own; the gradient of a matrix product is two more products. What PyTorch's own attention
    calls does not count, nor do views in its other modules: no line of the user's can call another operator.
    Nor do sparse gradients, nor those that call a collective, as those of FSDP: their time is communication.

    Source: DEEPCONTEXT section 4.3, "Forward/Backward Operator Analysis".
    """
    backward, forward = _pairs(context)
    product = context.events.text("kind").mask("gemm")[forward]
    others = context.events.text("kind").mask("communication") | context.events.text("name").mask(_SPARSE)
    others = context.search.holding(np.flatnonzero(others))[backward]
    users = ~product & ~are_of_pytorch(context.trace, forward) & ~others
    backward, forward = backward[users], forward[users]
    if not len(backward):
        return
    behind, ahead = context.measures.caused_ns(backward), context.measures.caused_ns(forward)
    for code, of in rows_by_key(context.events["name"][forward]).items():
        name = context.events.text("name").values[code]
        nodes = context.search.names(backward[of])
        ratio = float(np.median(behind[of] / np.maximum(ahead[of], 1.0)))
        spent = context.measures.per_step(behind[of].sum())
        is_own = name.replace("::", "_") in {part for node in nodes for part in _OWN_NODE.findall(node)}
        if not is_own and not _meant(nodes, name):
            continue
        chosen = backward[of]
        # Most tables have far more rows than are looked up; none where shapes are unknown.
        is_dense = (
            name in _TABLES and np.median(context.search.each_shapes(forward[of], _rows_per_index)) > FEW
        )
        if is_dense:
            ratio = max(ratio, RATIO)  # the update of the whole table may cost far more than its gradient
        elif context.measures.is_small(spent) or ratio <= (OWN_RATIO if is_own else RATIO):
            continue
        if name not in _SPECIAL and float(ahead[of].mean()) < LEAST_FORWARD_NS:
            continue
        gain = _gain(context, chosen, name, nodes, ratio)
        if not is_dense or not context.measures.is_small(gain.ms):
            sentence = _sentence(name, ratio, spent) + context.main_place(chosen)
            yield context.finding(sentence, _OWN if is_own else _advice(name), chosen, gain)


def _rows_per_index(shapes: list[list[int]]) -> float:
    """The rows of a table for each index that is looked up in it; 0 if unknown."""
    return 0.0 if len(shapes) < 2 or len(shapes[0]) != 2 else shapes[0][0] / max(prod(shapes[1]), 1)


def _gain(context: RuleContext, backward: Rows, operator: str, nodes: list[str], ratio: float) -> Gain:
    updates = context.search.outermost(context.search.find(stage="optimizer", category="cpu_op"))
    if operator in _TABLES and len(updates):
        left = 1 - _share_of_tables(context)
        rows = np.concatenate([backward, updates])
        factors = np.repeat([USUAL / ratio, left], [len(backward), len(updates)])
        note = "at most: if the gradient and the update only touched the rows in use"
        return context.gains.scaled(rows, factors, note)
    usual = 0.0 if operator in _VIEWS else USUAL / ratio
    return context.gains.gain(
        backward,
        *(f"scale:select=operator={glob(node)},factor={usual:.3f}" for node in nodes),
        note=f"if it took {USUAL:g} times the forward pass" if usual else "if it took no time",
        part=1 - usual,
    )


def _share_of_tables(context: RuleContext) -> float:
    """The share of all parameters that embedding tables have; 0 if unknown."""
    modules = context.trace["modules"]
    size = modules["parameters"].astype(np.float64)
    tables = size[modules.text("class").where(lambda name: name.startswith("Embedding"))].sum()
    return float(min(tables / max(size.max(initial=0), 1), 1))


def _sentence(operator: str, ratio: float, ms: float) -> str:
    if operator in _SPECIAL:
        return f"The gradient of {operator} takes {rounded(ms)} ms per step."
    return f"Backward of {operator} takes {rounded(ratio)} times its forward, {rounded(ms)} ms per step."


def _advice(operator: str) -> str:
    if operator in _VIEWS:
        return _VIEW
    return _EMBEDDING if operator in _TABLES else _OTHER


def _meant(nodes: list[str], operator: str) -> bool:
    """Whether gradient nodes belong to an operator by name, and no other rule covers it.

    A C++ function has no operator of its own; the trace then links another operator.
    """
    name = operator.rpartition("::")[2].replace("_", "").lower()
    return name != "index" and any(_NODE.sub("", node).lower() == name for node in nodes)


def _pairs(context: RuleContext) -> tuple[Rows, Rows]:
    events = context.events
    rows = context.search.find(stage="backward", on_device=False)
    origin = inherit(events["parent"], events["forward_event"])
    parent = events["parent"]
    outer = (parent[rows] < 0) | (origin[np.maximum(parent[rows], 0)] < 0)
    rows = rows[(events["forward_event"][rows] >= 0) & outer]
    forward = events["forward_event"][rows].astype(np.int64)
    made = events.text("name").where(lambda name: name.startswith("GeneratedBackwardFor_"))[forward]
    return rows, np.where(made & (parent[forward] >= 0), parent[forward], forward)
