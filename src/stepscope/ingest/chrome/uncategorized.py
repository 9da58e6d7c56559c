"""Events that a recorder wrote without a category: what their names and tracks say.

Examples are `EventList.export_chrome_trace` of torch.autograd.profiler, rocprof, JAX's
`trace.json.gz`, and `trace_view.json` of torch_npu, whose processes "Ascend Hardware" and
"Communication" are labeled NPU, and so is one that only sums up the two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.arrays import Mask
from stepscope.ingest.chrome.event_columns import EventColumns
from stepscope.ingest.chrome.record_columns import RecordColumns
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Text

_BY_NAME = (
    (re.compile(r"^(cuda|hip)[A-Z]|^cu(Launch|Mem|Stream|Event|Graph|Ctx)"), "runtime"),
    (re.compile(r"^nn\.Module: |\.py\(\d+\): "), "python"),
    (
        re.compile(r"^(aten|c10d|prims?|torchvision)::|^(torch::)?autograd::|Backward\d*$"),
        "cpu_op",
    ),
)
_COPY, _FILL = re.compile(r"(?i)^(mem)?(cpy|copy)|^Copy[A-Z]"), re.compile(r"(?i)^memset")
_STREAM = re.compile(r"(?i)^stream ?#?\d+")
_DEVICE = re.compile(r"(?i)^(\d+ )?gpu ?\d+$|^\d+ copy$|^(cuda|hip|xpu) functions$")

# Of a process: what launches point to in it is work of this device.
_KIND_OF_DEVICE = re.compile(r"(?i)^(?!c)\w{0,2}pu ?(?P<number>\d{0,9})$")


def category_by_name(name: str) -> str:
    """The category of an event of no category on a thread.

    Example:
        >>> category_by_name("aten::mm"), category_by_name("cudaLaunchKernel")
        ('cpu_op', 'runtime')
    """
    return next((found for pattern, found in _BY_NAME if pattern.search(name)), "other")


def category_on_stream(name: str) -> str:
    """The category of an event of no category on a stream of a device.

    Example:
        >>> category_on_stream("Memcpy HtoD"), category_on_stream("sgemm")
        ('memcpy', 'kernel')
    """
    return "memcpy" if _COPY.search(name) else "memset" if _FILL.search(name) else "kernel"


def streams_by_label(recorded: EventColumns) -> Mask:
    """Tracks of slices without a category that are called a stream or a device, bool, (tracks,).

    So are those in a process that is labeled as a kind of device, if launches point to them.
    """
    named = np.array([*_called_streams(recorded.columns)], np.bool_)
    named |= _launched_on(recorded, len(named))
    result = np.zeros(len(named), np.bool_)
    if named.any():
        rows = recorded.rows(lambda phase, category: phase in "XB" and not category)
        unknown = recorded.name.take(rows).where(lambda name: category_by_name(name) == "other")
        result[recorded.track[rows[unknown]]] = True
    return result & named


def _called_streams(columns: RecordColumns) -> Iterator[bool]:
    """Whether the thread of each track is called a stream, or its process a device."""
    processes = defaultdict(list)
    for (process, _, kind), label in columns.labels.items():
        if kind != "thread_name":
            processes[process].append(label)
    for process, thread in columns.tracks:
        threads = (str(thread), columns.labels.get((process, thread, "thread_name"), ""))
        devices = (str(process), *processes[process])
        yield any(map(_STREAM.match, threads)) or any(map(_DEVICE.match, devices))


def devices_by_label(columns: RecordColumns) -> dict[Any, int]:
    """The number of the device by process labeled as one ("GPU 3", "NPU"); 0 without a number."""
    found = {
        process: _KIND_OF_DEVICE.match(label)
        for (process, _, kind), label in columns.labels.items()
        if kind != "thread_name"
    }
    return {process: int(match["number"] or 0) for process, match in found.items() if match}


def _launched_on(recorded: EventColumns, count: int) -> Mask:
    """Tracks of processes labeled as a device on which arrows end, bool, (count,)."""
    devices = devices_by_label(recorded.columns)
    result = np.zeros(count, np.bool_)
    if devices:
        ends = recorded.track[recorded.rows(lambda phase, _: phase == "f")]
        result[ends[ends < count]] = True
    labeled = (process in devices for process, _ in recorded.columns.tracks)
    return result & np.fromiter(labeled, np.bool_, count)


def set_device_work(category: Text, name: Text, without: Mask) -> Text:
    """Categories, with `kernel`, `memcpy` or `memset` for uncategorized slices on streams.

    Args:
        category: of each slice, by its name.
        name: of each slice.
        without: slices on a stream that have no recorded category, bool, shape (slices,).
    """
    without = without & category.mask("other")
    if not without.any():
        return category
    names, which = np.unique(name.codes[without], return_inverse=True)
    codes = [CATEGORIES.index(category_on_stream(name.values[code])) for code in names.tolist()]
    result = category.codes.copy()
    result[without] = np.array(codes, result.dtype)[which]
    return Text(result, CATEGORIES)
