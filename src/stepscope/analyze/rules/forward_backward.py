"""`forward_backward`: operators whose backward takes far longer than their forward (4.3, 3)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Rows, Subject, glob
from stepscope.trace.nesting import inherit

_NODE = re.compile(r"^.*[: ]|Backward\d*$")
_EMBEDDING = (
    "Its gradient is as large as the table although few rows are used: nn.Embedding(sparse=True) "
    "with an optimizer that takes sparse gradients (SGD, SparseAdam, Adagrad), or a smaller table."
)
_VIEWS = tuple(f"aten::{name}" for name in ("slice", "select", "narrow", "as_strided", "diagonal"))
_VIEW = (
    "It is a view, so forward is free; its gradient is as large as the tensor that it is a part "
    "of, once for each part: take all parts at once (split, chunk, unbind)."
)
_OTHER = "Twice is usual: look for another form of the operator, with a cheaper gradient."
RATIO = 8.0
USUAL = 2.0
LEAST = 0.05


def forward_backward(subject: Subject) -> Iterator[Finding]:
    """Operators whose backward takes more than 8 times their forward, and 5 % of the step.

    Twice is usual, as a matrix product has two gradients; a power or a mean comes to five.

    Silent where the recorder does not tell which backward belongs to which forward, or names an
    operator of another name, about indexing, which has a rule of its own, and about matrix
    products, whose gradient are two more of them.

    Source: DEEPCONTEXT section 4.3, "Forward/Backward Operator Analysis".
    """
    backward, forward = _pairs(subject)
    product = subject.events.text("kind").mask("gemm")[forward]
    backward, forward = backward[~product], forward[~product]
    if not len(backward):
        return
    behind, ahead = subject.spent_ns(backward), subject.spent_ns(forward)
    names = subject.events["name"][forward]
    for code in np.unique(names).tolist():
        of = np.flatnonzero(names == code)
        name = subject.events.text("name").values[code]
        nodes = sorted({subject.name(row) for row in backward[of].tolist()})
        ratio = float(np.median(behind[of] / np.maximum(ahead[of], 1.0)))
        spent = float(behind[of].sum()) / 1e6 / subject.count
        if spent < LEAST * subject.step_ms or ratio <= RATIO or not _meant(nodes, name):
            continue
        chosen = backward[of]
        usual = 0.0 if name in _VIEWS else USUAL / ratio
        yield subject.finding(
            f"The backward pass of {name} takes {ratio:.3g} times its forward, {spent:.3g} ms a "
            f"step{subject.most_in(chosen)}.",
            _advice(name),
            chosen,
            subject.gain(
                chosen,
                *(f"scale:select=operator={glob(node)},factor={usual:.3f}" for node in nodes),
                note=f"if it took {USUAL:g} times the forward" if usual else "if it took no time",
                part=1 - usual,
            ),
        )


def _advice(operator: str) -> str:
    if operator in _VIEWS:
        return _VIEW
    return _EMBEDDING if operator == "aten::embedding" else _OTHER


def _meant(nodes: list[str], operator: str) -> bool:
    """Whether gradient nodes are those of an operator by name, and no rule of its own tells.

    A function written in C++ has no operator of its own; the recorder then names another one.
    """
    name = operator.rpartition("::")[2].replace("_", "").lower()
    return name != "index" and any(_NODE.sub("", node).lower() == name for node in nodes)


def _pairs(subject: Subject) -> tuple[Rows, Rows]:
    """The outermost backward operators, and the forward operator of each."""
    events = subject.events
    rows = subject.find(stage="backward", on_device=False)
    origin = inherit(events["parent"], events["forward_event"])
    parent = events["parent"][rows]
    outer = (parent < 0) | (origin[np.maximum(parent, 0)] < 0)
    rows = rows[(events["forward_event"][rows] >= 0) & outer]
    return rows, events["forward_event"][rows].astype(np.int64)
