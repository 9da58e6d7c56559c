"""`batch_size`: more or fewer samples in each step."""

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.models.memory.owners import ACTIVE, INPUTS, KEPT
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.layers import working
from stepscope.models.whatif.parts.memory_flow import operations
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import PASS_STAGES, STAGES

_ALL_MEMORY = (
    "all that a step allocates and training does not keep grows, and what was there before does not: "
    "the file does not show what depends on the input data"
)
_LOADING = ("data_loading", "transfer")


def batch_size(graph: Graph, factor: float, other: float = 1.0) -> Graph:
    """Each step has FACTOR times as many samples.

    Work of the model and loading grow with them; the optimizer and launches do not. `stepscope batch`
    measures it instead.

    Args:
        factor: how many times as many samples.
        other: how much of what has no known stage, as code of the loop, and of decoding grows with
            them, from 0 to 1; the range has both.
    """
    if factor <= 0:
        raise ChangeError(f"batch_size: expected factor above 0, found {factor}")
    if not 0 <= other <= 1:
        raise ChangeError(f"batch_size: expected other from 0 to 1, found {other}")
    works, loads, unknown, pauses = _parts(graph)
    share = 1 + (factor - 1) * other
    gaps = graph.tasks["gap_ns"] * np.where(pauses, share, np.where(loads, factor, 1.0))
    return scale(scale(graph.with_tasks(gap_ns=np.rint(gaps)), works | loads, factor), unknown, share)


def _parts(graph: Graph) -> tuple[Mask, Mask, Mask, Mask]:
    """Tasks of the model and of loading, those of which it is not known whether they grow, and those
    with code of the loop after them."""
    stage, works = graph.tasks.text("stage"), working(graph)
    outside = works | ~graph.on_device
    unknown = outside & ~stage.mask(*(name for name in STAGES if name != "other"))
    pauses = ~graph.on_device & (unknown | np.roll(begins_run(graph.tasks["thread"], stage.codes), -1))
    unknown |= works & stage.mask("decode", "prefill_decode")  # mostly reads weights, once for all requests
    return works & stage.mask(*PASS_STAGES) & ~unknown, outside & stage.mask(*_LOADING), unknown, pauses


_EMPTY = ("aten::empty", "aten::empty_strided")  # what code fills that no operator shows, as Triton's
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
    """Whether each recorded allocation grows with the batch size, shape (recorded,).

    Without what each operator reads, that is all that the steps make and training does not keep.
    """
    life = memory.recording.lifetimes
    kind = memory.lifetimes.kind[: len(life)]
    fixed = np.isin(kind, KEPT) | (life.bytes <= _SCALAR_BYTES)
    fixed |= memory.recording.stage == STAGES.index("optimizer")
    if not len(memory.recording.trace["tensor_uses"]):
        passes = np.isfinite(life.start) & np.isfinite(life.end)
        return np.asarray((np.isin(kind, (INPUTS, *ACTIVE)) | passes) & ~fixed)
    fixed |= _per_channel(memory.recording, np.isin(kind, KEPT))
    empty = memory.recording.trace.events.text("name").mask(*_EMPTY)
    by_hand = np.append(empty, False)[memory.recording.root] & np.isin(kind, ACTIVE)
    grows = ((kind == INPUTS) | by_hand) & ~fixed
    for operation in operations(memory.recording):
        if grows[operation.reads].any():
            grows[operation.makes] = ~fixed[operation.makes]
    return np.asarray(grows)


def _per_channel(recording: AllocationRecord, kept: Mask) -> Mask:
    """Allocations as large as a vector of weights, and seen as vectors only."""
    seen = recording.uses.row >= 0
    shape = recording.trace["tensor_uses"].text("shape").where(lambda text: "," not in text)
    vectors, size = np.ones(len(recording), np.bool_), recording.lifetimes.bytes
    vectors[recording.uses.allocation[seen][~shape[recording.uses.row[seen]]]] = False
    return np.asarray(vectors & np.isin(size, size[kept & vectors]))


def _unknown(graph: Graph) -> tuple[str, ...]:
    """What is assumed where it is not known whether an allocation grows."""
    return (_ALL_MEMORY,) if len(graph.trace["memory"]) and not len(graph.trace["tensor_uses"]) else ()


CHANGE = Change(
    batch_size,
    group="Memory",
    basis="the measured work of the model, in proportion to the samples",
    assumptions=(
        "an operator's time grows with its samples, so that kernels are not half empty",
        "code outside of the model, and decoding, grow with the samples; the range also has them as before",
    ),
    error=0.21,  # the largest of eight models on an H200 with twice the samples: of an LSTM
    evidence=_unknown,
    low={"other": 1.0},
    high={"other": 0.0},
    ranked=False,
    memory=with_batch,
    memory_error=0.02,
)
