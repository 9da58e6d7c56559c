"""`batch_size`: more or fewer samples in each step."""

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.models.memory.owners import INPUTS, KEPT
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.layers import working
from stepscope.models.whatif.parts.memory_flow import operations
from stepscope.trace.schema import PASS_STAGES, STAGES

_STAGES = ("data_loading", "transfer", *PASS_STAGES)


def batch_size(graph: Graph, factor: float) -> Graph:
    """Each step has FACTOR times as many samples.

    Work of the model grows with them; the optimizer and launches do not. `stepscope batch`
    measures it instead.

    Args:
        factor: how many times as many samples.
    """
    if factor <= 0:
        raise ChangeError(f"batch_size: expected factor above 0, found {factor}")
    return scale(graph, working(graph) & graph.tasks.text("stage").mask(*_STAGES), factor)


_SCALAR_BYTES = 8  # of the largest scalar; no batch makes one larger


def with_batch(memory: RecordedMemory, factor: float) -> RecordedMemory:
    """The memory if each step had `factor` times as many samples.

    What depends on the input data grows, but for gradients and for statistics of channels, which
    are vectors as large as a parameter that is a vector.
    """
    grows = batched(memory)
    if not grows.any():
        raise ChangeError("batch_size: no allocation depends on the input data")
    life = memory.lifetimes
    scaled = np.rint(life.bytes * factor).astype(np.int64)
    rows = np.append(grows, False)[life.recorded]
    return memory.with_lifetimes(life.changed(bytes=np.where(rows, scaled, life.bytes)))


def batched(memory: RecordedMemory) -> Mask:
    """Whether each recorded allocation grows with the batch size, shape (recorded,)."""
    life = memory.recording.lifetimes
    kind = memory.lifetimes.kind[: len(life)]
    fixed = np.isin(kind, KEPT) | _per_channel(memory)
    fixed |= memory.recording.stage == STAGES.index("optimizer")
    fixed |= life.bytes <= _SCALAR_BYTES
    grows = (kind == INPUTS) & ~fixed
    for operation in operations(memory.recording):
        if grows[operation.reads].any():
            grows[operation.makes] = ~fixed[operation.makes]
    return np.asarray(grows)


def _per_channel(memory: RecordedMemory) -> Mask:
    """Allocations as large as a vector of weights, and seen as vectors only."""
    vectors = _vectors(memory.recording)
    weights = np.isin(memory.lifetimes.kind[: len(vectors)], KEPT)
    size = memory.recording.lifetimes.bytes
    return np.asarray(vectors & np.isin(size, np.unique(size[weights & vectors])))


def _vectors(recording: AllocationRecord) -> Mask:
    """Whether every operator that uses a recorded allocation sees a vector, shape (recorded,)."""
    seen = recording.uses.row >= 0
    shape = recording.trace["tensor_uses"].text("shape").where(lambda text: "," not in text)
    flat = shape[recording.uses.row[seen]]
    result = np.ones(len(recording), np.bool_)
    result[recording.uses.allocation[seen][~flat]] = False
    return result


CHANGE = Change(
    batch_size,
    group="Memory",
    basis="the measured work of the model, in proportion to the samples",
    assumptions=("an operator's time grows with its samples, so that kernels are not half empty",),
    error=0.21,  # the largest of eight models on an H200 with twice the samples: of an LSTM
    ranked=False,
    memory=with_batch,
    memory_error=0.02,
)
