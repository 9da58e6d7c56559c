"""`index_backward`: the gradient of indexing is summed up in a fixed order (DEEPCONTEXT 6.1)."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject

LEAST = 0.02


def index_backward(subject: Subject) -> Iterator[Finding]:
    """Backward of tensor[indices], which adds up gradients of equal indices one after the other.

    Silent where it takes less than 2 % of the step; index_select, gather and embedding are not
    meant.

    Source: DEEPCONTEXT section 6.1: 39.6 % of DLRM's GPU time; 73.2 s to 44.0 s with index_select.
    """
    rows = subject.outermost(subject.find(r"^IndexBackward0$", category="cpu_op"))
    if not len(rows):
        return
    work = subject.find(inside=rows, on_device=True) if subject.has_device else rows
    if subject.share(work) < LEAST:
        return
    yield subject.finding(
        f"The backward pass of indexing (tensor[indices]) takes {subject.ms(work):.3g} ms a step.",
        "Where one dimension is indexed, use torch.index_select or, for rows, F.embedding: their "
        "backward need not add in a fixed order.",
        work,
        subject.gain(rows, "scale:select=operator=IndexBackward0,factor=0",
                     note="at most: a backward that costs nothing"),
    )  # fmt: skip
