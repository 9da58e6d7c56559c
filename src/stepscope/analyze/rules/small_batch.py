"""`small_batch`: each step computes too little to keep the machine busy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Finding
from stepscope.analyze.search import Mask, Rows
from stepscope.analyze.subject import Subject
from stepscope.trace.schema import STAGES

_PRODUCTS = r"^aten::(mm|addmm|linear|convolution|_convolution|conv\dd)$"
SMALL = 8
LEAST_IDLE = 0.30
LEAST_OVERHEAD = 0.70
WORK_NS = 20_000
_BUT_LOADING = tuple(stage for stage in STAGES if stage != "data_loading")


def small_batch(subject: Subject) -> Iterator[Finding]:
    """Batches of at most 8 rows, and a machine that is mostly busy with overhead.

    Rows are those of the largest matrix product of the forward pass, images those of convolutions.

    Silent where shapes were not recorded; with a device where it idles at launches for less than
    30 % of the step; without one where operators of 20 µs or more, and loading data, take 30 %.
    """
    rows = subject.find(_PRODUCTS, category="cpu_op", stage="forward")
    sizes = [_rows_of(shapes) for shapes in subject.shapes(rows)]
    if not sizes or not 0 < max(sizes) <= SMALL:
        return
    overhead = _overhead_ms(subject)
    if overhead < (LEAST_IDLE if subject.has_device else LEAST_OVERHEAD) * subject.step_ms:
        return
    yield subject.finding(
        f"Batches have {max(sizes)} rows, and {overhead / subject.step_ms:.0%} of the step is "
        "overhead that larger batches would share.",
        _advice(subject),
        rows,
        subject.bound(overhead, "at most, for each sample: the overhead shared among many"),
    )


def _advice(subject: Subject) -> str:
    if not len(subject.find(stage="backward")):
        return "Use larger batches, or pack several samples into one."
    return (
        "Use larger batches (and scale the learning rate), or pack several samples into one; "
        "stepscope batch tells how far."
    )


def _rows_of(shapes: list[list[int]]) -> int:
    """The rows that a product multiplies: all dimensions but the last; images of a convolution."""
    matrices = [shape for shape in shapes if len(shape) >= 2]
    if not matrices:
        return 0
    first = matrices[0]
    return first[0] if len(first) >= 4 else int(np.prod(first[:-1]))


def _overhead_ms(subject: Subject) -> float:
    """Time a step in which nothing works that a larger batch would make longer."""
    if subject.has_device:
        return subject.launch_gaps().total() / 1e6 / subject.count
    calls = subject.find(category="cpu_op", stage=_BUT_LOADING)
    own = subject.events["self_ns"][calls]
    working = own[(own >= WORK_NS) & _computes(subject, calls, own)].sum() / 1e6 / subject.count
    loading = subject.outermost(subject.find(stage="data_loading"))
    return float(subject.step_ms - subject.ms(loading) - working)


def _computes(subject: Subject, calls: Rows, own: NDArray[np.int64]) -> Mask:
    """Operators that call no other, and those that call some and mostly work themselves.

    A convolution makes room for its result by an operator of its own.
    """
    names = subject.events["name"][calls]
    medians = {name: np.median(own[names == name]) for name in np.unique(names).tolist()}
    working = [name for name, median in medians.items() if median >= WORK_NS]
    return np.isin(calls, subject.innermost_operators(calls)) | np.isin(names, working)
