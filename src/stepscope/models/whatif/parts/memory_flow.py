"""Which operator reads and makes which allocation, and what autocast makes of the allocations.

Precision flows from operator to operator along the recorded tensors. An operator that autocast
lowers gets a 16-bit copy of each FP32 input. Of a parameter there is one copy until the region
ends; of other values each operator has its own, and backward keeps it instead of the original."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.owners import ACTIVATIONS, BUFFERS, GRADIENTS, TEMPORARIES, WEIGHTS
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory
from stepscope.models.whatif.parts.autocast_flow import policy_of
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import STAGES


@dataclass(frozen=True)
class FlowOperation:
    """One outermost operator."""

    root: int
    reads: Ids  # numbers of the recorded allocations that it uses and that were there before
    makes: Ids


def operations(recording: AllocationRecord) -> Iterator[FlowOperation]:
    """Every outermost operator, in order of time."""
    uses = recording.uses
    before = recording.lifetimes.start[uses.allocation] < recording.starts[uses.root]
    read = np.flatnonzero((uses.root >= 0) & before)
    made = np.flatnonzero(recording.root >= 0)
    reads, makes = rows_by_key(uses.root, read), rows_by_key(recording.root, made)
    for root in sorted({*reads, *makes}, key=lambda root: (recording.starts[root], root)):
        reading = np.unique(uses.allocation[reads.get(root, read[:0])])
        yield FlowOperation(root, reading, makes.get(root, made[:0]))


_PARAMETERS = (WEIGHTS, BUFFERS)
_FORWARD = [STAGES.index(name) for name in ("forward", "loss")]
_BACKWARD = STAGES.index("backward")
_SCALAR_BYTES = 8  # of the largest scalar, which autocast does not count
_INSTANT = 0.25  # ns: two copies live side by side within one tick of the recorded clock
_WORKSPACE = 0.705  # of oneDNN's LSTM, whose contents are partly 16 bits wide; 0.70 to 0.75


def autocasted(memory: RecordedMemory) -> RecordedMemory:
    """The memory if forward and loss ran under `torch.autocast` to bfloat16."""
    if not len(memory.recording.trace["tensor_uses"]):
        raise ChangeError("amp: memory is predicted from captures of `stepscope run --memory --shapes`")
    flow = _PrecisionFlow(memory)
    for operation in operations(memory.recording):
        flow.run(operation)
    if not flow.lowers:
        raise ChangeError("amp: no operator of these steps runs in 16 bits under autocast")
    return memory.with_lifetimes(flow.lifetimes())


class _PrecisionFlow:
    """What is known of each recorded allocation as operators run one after the other."""

    def __init__(self, memory: RecordedMemory) -> None:
        self.memory, self.recording = memory, memory.recording
        self.policy = policy_of("cpu" if memory.recording.device.startswith("cpu") else "cuda")
        events, count = memory.recording.trace.events, len(memory.recording)
        starts, attribution = memory.recording.starts, memory.recording.attribution
        self.names = events.text("name")
        self.floats, self.octets = (_holds(self.recording, dtype) for dtype in ("float32", "uint8"))
        self.elements = _elements(self.recording)
        self.saved = _saved(self.recording)
        backward = np.flatnonzero(attribution.backward & (events["stage"] == _BACKWARD))
        self.backward_starts = np.append(starts[backward], np.inf)
        # When the last backward operator of each outermost forward operator begins.
        self.last_backward = np.full(len(events) + 1, -np.inf)
        linked = np.flatnonzero(events["forward_event"] >= 0)
        np.maximum.at(self.last_backward, attribution.root[events["forward_event"][linked]], starts[linked])
        self.half, self.share = np.zeros(count, np.bool_), np.ones(count)
        self.starts, self.ends = self.recording.lifetimes.start.copy(), np.full(count, np.inf)
        self.dropped: dict[int, set[int]] = {}
        self.casts: dict[int, list[int]] = {}
        self.raised: dict[int, list[int]] = {}
        self.half_results: set[int] = set()
        self.copied: set[tuple[int, float]] = set()
        self.added: list[tuple[int, float, float, int]] = []
        self.lowers = False

    def run(self, operation: FlowOperation) -> None:
        stage = int(self.recording.attribution.stage[operation.root])
        if stage in _FORWARD:
            self._forward(operation)
        elif stage == _BACKWARD:
            self._backward(operation)

    def _forward(self, operation: FlowOperation) -> None:
        root, name = operation.root, str(self.names[operation.root]).removeprefix("aten::")
        reads = [allocation for allocation in operation.reads.tolist() if self.floats[allocation]]
        kind = self.memory.lifetimes.kind
        if name in self.policy.lowered:
            self.lowers = True
            for allocation in reads:
                if not self.half[allocation] and kind[allocation] in _PARAMETERS:
                    self._cast_weight(allocation, root)
                elif not self.half[allocation]:
                    self._cast(allocation, root, 2, self.casts)
            half = True
        elif name in self.policy.kept:
            for allocation in reads:
                if self.half[allocation]:
                    self._cast(allocation, root, 4, self.raised)
            half = False
        else:
            size = self.recording.lifetimes.bytes
            values = [row for row in reads if kind[row] not in _PARAMETERS and size[row] > _SCALAR_BYTES]
            half = bool(values) and bool(self.half[values].all())
        if half:
            self.half_results.add(root)
            self.half[operation.makes] = self.floats[operation.makes]
            self.share[operation.makes[self.octets[operation.makes]]] = _WORKSPACE

    def _cast_weight(self, allocation: int, root: int) -> None:
        """There is one copy in 16 bits until the region ends."""
        begin, _ = self._span(root)
        # The autocast region ends where backward begins.
        region = float(self.backward_starts[np.searchsorted(self.backward_starts, begin)])
        if (allocation, region) not in self.copied:
            self.copied.add((allocation, region))
            self._add_copy(allocation, root, 2, region)

    def _cast(self, allocation: int, root: int, width: int, casts: dict[int, list[int]]) -> None:
        """Backward of an operator keeps its copy, no longer the original."""
        casts.setdefault(root, []).append(int(self.recording.lifetimes.bytes[allocation]))
        self._add_copy(allocation, root, width, self._span(root)[1])
        if root in self.saved.get(allocation, {}):
            self.dropped.setdefault(allocation, set()).add(root)

    def _add_copy(self, allocation: int, root: int, width: int, end: float) -> None:
        """A copy of so many bytes an element, until `end` or as long as backward needs it."""
        in_single = int(self.recording.lifetimes.bytes[allocation]) // 4
        size = width * self.elements.get((root, allocation), in_single)
        needed = self.saved.get(allocation, {}).get(root, -np.inf)
        self.added.append((size, self._span(root)[0], max(end, needed), ACTIVATIONS))

    def _backward(self, operation: FlowOperation) -> None:
        """Gradients have the precision of the values that they belong to."""
        forward = int(self.recording.trace.events["forward_event"][operation.root])
        root = int(self.recording.attribution.root[forward]) if forward >= 0 else -1
        begin, end = self._span(operation.root)
        for allocation in operation.makes.tolist():
            if self.floats[allocation]:
                self._gradient(allocation, root, begin, end)

    def _gradient(self, allocation: int, root: int, begin: float, end: float) -> None:
        size = int(self.recording.lifetimes.bytes[allocation])
        start = float(self.recording.lifetimes.start[allocation])
        is_kept = self.memory.lifetimes.kind[allocation] == GRADIENTS
        if root in self.half_results:
            if is_kept or size in self.casts.get(root, ()):
                # Made in 16 bits, then cast to the FP32 of the parameter or value.
                self.added.append((size // 2, start, end + _INSTANT, TEMPORARIES))
                self.starts[allocation] = end
            else:
                self.half[allocation] = True
        elif size in self.raised.get(root, ()) and self.last_backward[root] == begin:
            self.added.append((size // 2, end, float(self.recording.lifetimes.end[allocation]), TEMPORARIES))
            self.ends[allocation] = end + _INSTANT

    def _span(self, root: int) -> tuple[float, float]:
        return float(self.recording.starts[root]), float(self.recording.ends[root])

    def lifetimes(self) -> Lifetimes:
        life = self.memory.lifetimes
        share = np.append(np.where(self.half, 0.5, self.share), 1.0)[life.recorded]
        released = np.append(np.minimum(self._ends(), self.ends), np.inf)[life.recorded]
        begun = np.append(self.starts, -np.inf)[life.recorded]
        return life.changed(
            bytes=np.rint(life.bytes * share).astype(np.int64),
            start=np.maximum(life.start, begun),
            end=np.minimum(life.end, released),
        ).plus(Lifetimes.added(*zip(*self.added or [(0, 0.0, 0.0, 0)], strict=True)))

    def _ends(self) -> Floats:
        """When each recorded allocation is released if backward keeps copies of it; else inf."""
        ends = np.full(len(self.half), np.inf)
        reads, recorded = self.recording.last_read, self.recording.lifetimes.end
        for allocation, roots in self.dropped.items():
            others = [time for root, time in self.saved[allocation].items() if root not in roots]
            event = int(self.recording.released_by[allocation])
            held_by_backward = event >= 0 and self.recording.attribution.backward[event]
            if np.isfinite(recorded[allocation]) and held_by_backward:
                ends[allocation] = max([float(reads[allocation]), *others])
        return ends


def _holds(recording: AllocationRecord, dtype: str) -> Mask:
    """Allocations whose users see a type; unseen ones count as FP32, which most are."""
    uses, table = recording.uses, recording.trace["tensor_uses"]
    seen = uses.row >= 0
    wanted = table.text("dtype").mask(dtype)[uses.row[seen]]
    result = np.full(len(recording), dtype == "float32")
    result[uses.allocation[seen]] = True
    result[uses.allocation[seen][~wanted]] = False
    return result & (recording.lifetimes.bytes > _SCALAR_BYTES)


def _elements(recording: AllocationRecord) -> dict[tuple[int, int], int]:
    """Elements of each tensor as an outermost operator first sees it: (operator, allocation)."""
    uses, shape = recording.uses, recording.trace["tensor_uses"].text("shape")
    sizes = np.array([prod(int(size) for size in text.split(",") if size) for text in shape.values] + [0])
    rows = np.flatnonzero((uses.row >= 0) & ~uses.backward)
    count = sizes[shape.codes[uses.row[rows]]]
    pairs = zip(uses.root[rows].tolist(), uses.allocation[rows].tolist(), count.tolist(), strict=True)
    found: dict[tuple[int, int], int] = {}
    for operator, allocation, elements in pairs:
        found.setdefault((operator, allocation), elements)
    return found


def _saved(recording: AllocationRecord) -> dict[int, dict[int, float]]:
    """For each allocation the forward operators that keep it, until the end of their backward."""
    uses = recording.uses
    rows = np.flatnonzero(uses.saver >= 0)
    root = recording.attribution.root[uses.saver[rows]]
    back = recording.ends[uses.root[rows]]
    found: dict[int, dict[int, float]] = {}
    for allocation, operator, end in zip(
        uses.allocation[rows].tolist(), root.tolist(), back.tolist(), strict=True
    ):
        keepers = found.setdefault(allocation, {})
        keepers[operator] = max(keepers.get(operator, -np.inf), end)
    return found
