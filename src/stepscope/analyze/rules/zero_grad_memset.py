"""`zero_grad_memset`: gradients are filled with zeros instead of dropped."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject

_ZEROING = r"^aten::(zero_|fill_|_foreach_zero_|mul_)$"


def zero_grad_memset(subject: Subject) -> Iterator[Finding]:
    """Gradients set to zero by writing zeros, which the next backward then reads to add to them.

    Silent where gradients are dropped (set_to_none, the default since PyTorch 2.0), and where
    nothing marks the zeroing of gradients.
    """
    rows = subject.outermost(subject.find(_ZEROING, stage="zero_grad", category="cpu_op"))
    if not len(rows):
        return
    yield subject.finding(
        f"Gradients are filled with zeros, {subject.calls(rows):.4g} operators a step.",
        "Drop them instead: optimizer.zero_grad(set_to_none=True), the default since PyTorch 2.0; "
        "backward then writes where it would read and add.",
        rows,
        subject.gain(rows, "scale:select=stage=zero_grad,factor=0"),
    )
