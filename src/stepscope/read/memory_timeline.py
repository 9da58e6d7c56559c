"""Reader of what `torch.profiler.profile.export_memory_timeline` writes as JSON.

`.json` holds `[times in us, bytes of each category at each time]`; `.raw.json.gz` holds one
`[time in ns, action, bytes, category]` for each change. Neither names the device or an address.

Source: `MemoryProfileTimeline` in PyTorch's torch/profiler/_memory_profiler.py.
"""

from contextlib import suppress
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np

from stepscope.base.arrays import Codes, Integers, Times
from stepscope.base.typed_data import decode
from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, whole
from stepscope.read.shared import WarningLog
from stepscope.trace.schema import MEMORY
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

# PyTorch's categories by number: the last but one is the inside of backward.
_LISTED = "weights, optimizer state, inputs, temporaries, activations, gradients, temporaries, unknown"
_KINDS = tuple(_LISTED.split(", "))
_NAMES = tuple(dict.fromkeys(_KINDS))
_MICROSECOND = 1000  # ns
_CODES = np.array([_NAMES.index(name) for name in _KINDS], np.int32)
_Raw = list[tuple[int, int, int, int]]
_Levels = tuple[list[int], list[Annotated[list[int], msgspec.Meta(min_length=len(_KINDS) + 1)]]]


def read_memory_timeline(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """A trace with the table `memory` and no events, as every `Reader` gives one."""
    log = WarningLog()
    recorded = _decoded(whole(file, gzipped, log, progress))
    times, change, category = _of_levels(*recorded) if isinstance(recorded, tuple) else _of_raw(recorded)
    if len(category) and not 0 <= category.min() <= category.max() < len(_KINDS):
        raise IngestError(f"expected categories 0 to {len(_KINDS) - 1} in the memory timeline")
    if len(change) and not -(1 << 53) < change.min() <= change.max() < 1 << 53:  # sums of more overflow
        raise IngestError("the memory timeline has changes that are no size of memory")
    return _trace(times, change, category, log)


def _decoded(text: bytes) -> _Levels | _Raw:
    forms: tuple[Any, ...] = (_Levels, _Raw)
    for form in forms:
        with suppress(msgspec.MsgspecError):
            return decode(text, form)
    raise IngestError(
        "expected a memory timeline of PyTorch ([times, sizes by category], or "
        "[time, action, bytes, category] for each change), found other or damaged JSON"
    )


def _of_raw(events: _Raw) -> tuple[Times, Integers, Codes]:
    """The recorded changes; what was there before (time -1) comes at the first time."""
    table = _integers(events).reshape(len(events), 4)
    is_later = table[:, 0] >= 0
    first = int(table[is_later, 0].min()) if is_later.any() else 0
    return np.where(is_later, table[:, 0], first), table[:, 2], table[:, 3]


def _of_levels(times: list[int], sizes: list[list[int]]) -> tuple[Times, Integers, Codes]:
    """What changes from each time to the next, category by category."""
    widths = {len(row) for row in sizes}
    if len(times) != len(sizes) or widths - {len(_KINDS) + 1}:
        raise IngestError(f"expected {len(_KINDS) + 1} sizes for each time of the memory timeline")
    levels = _integers(sizes).reshape(len(times), len(_KINDS) + 1)[:, 1:]  # the first is always 0
    change = np.diff(levels, axis=0, prepend=0)
    row, category = np.nonzero(change)
    return _integers(times)[row] * _MICROSECOND, change[row, category], category.astype(np.int64)


def _integers(values: Any) -> Integers:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise IngestError("the memory timeline has numbers of more than 64 bits") from None


def _trace(times: Times, change: Integers, category: Codes, log: WarningLog) -> Trace:
    rows = np.flatnonzero(change)
    if not len(rows):
        raise IngestError("the memory timeline holds no change of memory")
    rows = rows[np.argsort(times[rows], kind="stable")]
    origin = int(times[rows[0]])
    columns: dict[str, Any] = {
        "time_ns": times[rows] - origin,
        "device": Text.constant("device", len(rows)),
        "bytes": change[rows],
        "category": Text(_CODES[category[rows]], list(_NAMES)),
    }
    trace = Trace({"memory": Table(MEMORY, columns)}, Metadata("pytorch", origin_ns=origin))
    return trace.with_warnings(log.rows())
