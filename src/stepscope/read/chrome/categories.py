"""The categories of events, and the tracks that they run on."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.base.kernel_names import COPY_OF_ROCM
from stepscope.read.chrome.event_columns import RecordColumns, RecordedEvents
from stepscope.trace.schema import CATEGORIES, TRACK_KINDS
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Text

_BY_NAME = (
    (re.compile(r"^(cuda|hip)[A-Z]|^cu(Launch|Mem|Stream|Event|Graph|Ctx)"), "runtime"),
    (re.compile(r"^(Pjit|Py|pjit)\w*\(|^PjRt\w*::|^BlockHostUntilReady$"), "runtime"),  # of JAX
    (re.compile(r"^nn\.Module: |\.py\(\d+\): |^\$\S+\.py:\d+ "), "python"),
    (re.compile(r"^(aten|c10d|prims?|torchvision)::|^(torch::)?autograd::|Backward\d*$"), "cpu_op"),
    (re.compile(r"^IteratorGetNextOp::"), "cpu_op"),
)
_COPY, _FILL = re.compile(r"(?i)^(mem)?(cpy|copy)|^Copy[A-Z]"), re.compile(r"(?i)^memset")
# What Ascend's scheduler does in a stream: no work of the device.
_SYNC = re.compile(r"^(EVENT|STREAM)_(WAIT|RECORD)(_SQE)?$|^PLACE_?HOLDER(_SQE)?$")
# Of HCCL on Ascend: collectives, and the tasks of them that more detailed recordings have in streams.
_COLLECTIVE, _COLLECTIVE_TASK = re.compile(r"(?i)^hcom_"), re.compile(r"(?i)^notify_(wait|record)")
_STREAM = re.compile(r"(?i)^stream ?#?\d+|^((async )?xla|sparse core) ops$")  # of GPUs, and of TPUs
_DEVICE = re.compile(r"(?i)^(\d+ )?gpu ?\d+$|^\d+ copy$|^(cuda|hip|xpu) functions$")

# Of XLA, whose processes count from 1, and of unitrace, where they are too large for numbers.
_PLANE = re.compile(r"^(?:/device:\w+:|(?:RANK \d+ )?DEVICE<.*#)(?P<number>\d{1,9})\b")
# Of a process: what launches point to in it is work of this device.
_KIND_OF_DEVICE = re.compile(r"(?i)^(?!c)\w{0,2}pu ?(?P<number>\d{0,9})$")


def category_by_name(name: str) -> str:
    """The category of an event of no category on a thread.

    Example:
        >>> category_by_name("aten::mm"), category_by_name("cudaLaunchKernel")
        ('cpu_op', 'runtime')
    """
    return next((category for pattern, category in _BY_NAME if pattern.search(name)), "other")


def category_on_stream(name: str) -> str:
    """The category of an event of no category on a stream of a device.

    Example:
        >>> [category_on_stream(name) for name in ("Memcpy HtoD", "sgemm", "EVENT_WAIT")]
        ['memcpy', 'kernel', 'sync']
    """
    if _SYNC.match(name):
        return "sync"
    return "memcpy" if _COPY.search(name) else "memset" if _FILL.search(name) else "kernel"


def streams_by_label(recorded: RecordedEvents) -> Mask:
    """Tracks of slices without a category that are called a stream or a device, bool, (tracks,).

    So are those in a process that is labeled as a kind of device, if launches point to them, or if
    nothing else shows its collectives.
    """
    named = np.array([*_called_streams(recorded.columns)], np.bool_)
    marked = recorded.track[recorded.rows(lambda phase, _: phase == "f")]  # where arrows end
    result = np.zeros(len(named), np.bool_)
    devices = devices_by_label(recorded.columns)
    if named.any() or devices:
        rows = recorded.rows(lambda phase, category: phase in "XB" and not category)
        names, track = recorded.name.take(rows), recorded.track[rows]
        if not names.where(lambda name: bool(_COLLECTIVE_TASK.match(name))).any():
            marked = np.append(marked, track[names.where(lambda name: bool(_COLLECTIVE.match(name)))])
        labeled = np.array([process in devices for process, _ in recorded.columns.tracks], np.bool_)
        named |= labeled & np.isin(np.arange(len(named)), marked)
        result[track[names.where(lambda name: category_by_name(name) == "other")]] = True
    return result & named


def _called_streams(columns: RecordColumns) -> Iterator[bool]:
    """Whether the thread of each track is called a stream, or its process a device."""
    names = [(process, str(process)) for process, _ in columns.tracks]
    names += [(key[0], label) for key, label in columns.labels.items() if key[2] != "thread_name"]
    devices = {process for process, name in names if _DEVICE.match(name)}
    for process, thread in columns.tracks:
        threads = (str(thread), columns.labels.get((process, thread, "thread_name"), ""))
        yield process in devices or any(map(_STREAM.match, threads))


def devices_by_label(columns: RecordColumns, pattern: re.Pattern[str] = _KIND_OF_DEVICE) -> dict[Any, int]:
    """The number in the label of each process that is labeled as a device ("GPU 3", "NPU"); 0 without one."""
    found = ((key[0], pattern.match(text)) for key, text in columns.labels.items() if key[2] != "thread_name")
    return {process: int(match["number"] or 0) for process, match in found if match}


def set_device_work(category: Text, name: Text, without: Mask) -> Text:
    """Categories, with `kernel`, `memcpy` or `memset` for uncategorized slices on streams.

    Slices `without` a recorded category lie on a stream.
    """
    without = without & category.mask("other")
    if not without.any():
        return category
    names, which = np.unique(name.codes[without], return_inverse=True)
    codes = [CATEGORIES.index(category_on_stream(name.values[code])) for code in names.tolist()]
    result = category.codes.copy()
    result[without] = np.array(codes, result.dtype)[which]
    return Text(result, CATEGORIES)


_RECORDED = {
    "cpu_op": "operator cpu_op operatorinner dygraphkernellaunch statickernellaunch",
    "annotation": "user_annotation gpu_user_annotation marker_api profilestep dataloader forward backward "
    "optimization userdefined pythonuserdefined",
    "runtime": "runtime cudaruntime",
    "other": "external_correlation overhead trace",
    "kernel": "kernel concurrent_kernel hpu_op kernel_dispatch gpu_op",
    "memcpy": "memcpy gpu_memcpy memory_copy",
    "memset": "memset gpu_memset",
    "python": "python_function",
    "sync": "cuda_sync",
    "communication": "collective_comm",
}
_EXACT = {recorded: category for category, names in _RECORDED.items() for recorded in names.split()}
_PATTERNS = (
    (re.compile(r"(?<!^group)(?<!^coll)(?<!^p2p)_api$|_(runtime|driver)$"), "runtime"),  # not NCCL's own
    (re.compile(r"(_kernel|_ccp_events)$"), "kernel"),
    (re.compile(r"_memcpy$"), "memcpy"),
    (re.compile(r"_memset$"), "memset"),
    (re.compile(r"_sync$"), "sync"),
    (re.compile(r"user_annotation$"), "annotation"),
)
# PyTorch 1.8 to 1.10 wrote the profiler's and users' ranges as operators; every version does so
# for the fast ranges that stepscope's recorder uses.
_RANGE = re.compile(
    r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|##|PyTorch Profiler"
    r"|stepscope\.(module|optimizer|evaluation|checkpointing|block):)"
)
# MTIA and Intel's unitrace record copies among kernels, and unitrace calls among operators.
_COPIED = re.compile(
    f"{COPY_OF_ROCM}|" r"^dma_request\b|^ze\w+Memory(Copy|Fill)|^clEnqueue(Read|Write|Copy|Fill)"
)
_CALLED = re.compile(r"^(ze|cl|ur)[A-Z]")
_ON_DEVICE = ("kernel", "memcpy", "memset", "sync", "communication")


def category(recorded: str, name: str) -> str:
    """The category of an event from its recorded category and its name.

    Example:
        >>> category("Operator", "aten::add"), category("Operator", "ProfilerStep#5")
        ('cpu_op', 'annotation')
        >>> category("mtia_ccp_events", "dma_request")
        'memcpy'
        >>> category("hip_api", "hipLaunchKernel"), category("kernel_dispatch", "Cijk_Ailk")
        ('runtime', 'kernel')
        >>> category("kernel_dispatch", "__amd_rocclr_copyBuffer.kd")
        'memcpy'
    """
    if not recorded:
        return "annotation" if _RANGE.match(name) else category_by_name(name)
    key = recorded.lower()
    named = _EXACT.get(key) or next((to for test, to in _PATTERNS if test.search(key)), "other")
    if named == "kernel" and _COPIED.match(name):
        return "memcpy"
    if named == "cpu_op" and _CALLED.match(name):
        return "runtime"
    return "annotation" if named == "cpu_op" and _RANGE.match(name) else named


def on_device(recorded: str) -> bool:
    """Whether events of this recorded category run on a device, so that their track is a stream."""
    return category(recorded, "") in _ON_DEVICE or recorded.lower() in ("gpu_user_annotation", "cuda_event")


# Kineto's samples of a device's performance monitors, on the process with its number.
_COUNTERS = re.compile(r"^(hardware|gpu_pm|mtia)_counters?$", re.IGNORECASE)
_STREAM_NUMBER = re.compile(r"^stream (\d{1,9})$")


def track_columns(recorded: RecordedEvents, rank: int, streams: Mask) -> dict[str, Any]:
    """Columns of the tracks table; `streams` are the tracks that only labels call a stream."""
    keys = list(recorded.columns.tracks)
    device = _on_device(recorded, len(keys))
    device[: len(streams)] |= streams
    is_device = device.tolist()
    return {
        "kind": Text(device.astype(np.int8), TRACK_KINDS),
        "name": _names(recorded, keys, is_device),
        "rank": np.full(len(keys), rank),
        "process": [str(process) for process, _ in keys],
        "thread": [str(thread) for _, thread in keys],
        "device": _devices(recorded, keys, is_device, streams),
        "stream": [
            _stream(thread) if on_gpu else -1 for (_, thread), on_gpu in zip(keys, is_device, strict=True)
        ],
    }


def _devices(
    recorded: RecordedEvents, keys: list[tuple[Any, Any]], is_device: list[bool], streams: Mask
) -> list[int]:
    """The device of each track, -1 for the CPU's; one without a recorded number is device 0.

    It is the process, but for streams that only labels know, which several processes of a device
    may have. Ranks that were merged into one file may each have a "GPU 0".
    """
    by_label = {keys[track][0] for track in np.flatnonzero(streams).tolist()}
    labeled = devices_by_label(recorded.columns).items()
    numbers = devices_by_label(recorded.columns, _PLANE)
    numbers |= {process: number for process, number in labeled if process in by_label}
    return [
        numbers.get(process, max(_number(process), 0)) if on_gpu else -1
        for (process, _), on_gpu in zip(keys, is_device, strict=True)
    ]


def _on_device(recorded: RecordedEvents, count: int) -> Mask:
    rows = recorded.rows(
        lambda phase, category: (
            (phase in "XB" and on_device(category)) or (phase == "C" and bool(_COUNTERS.search(category)))
        )
    )
    return mask_of(recorded.track[rows], count)


def _names(recorded: RecordedEvents, keys: list[tuple[Any, Any]], is_device: list[bool]) -> list[str]:
    """The name of each track; threads of several processes with one name get their process's."""
    labels = recorded.columns.labels
    processes = {key[0]: label for key, label in labels.items() if key[2] == "process_name"}
    names = [
        labels.get((process, thread, "thread_name"))
        or (f"{processes[process]} {thread}" if process in processes else f"thread {thread}")
        for process, thread in keys
    ]
    of_name: dict[str, set[Any]] = {}
    for (process, _), name, on_gpu in zip(keys, names, is_device, strict=True):
        of_name.setdefault(name, set()).update(() if on_gpu else (process,))
    return [
        f"{processes.get(process, f'process {process}')} {name}"
        if len(of_name[name]) > 1 and not on_gpu
        else name
        for (process, _), name, on_gpu in zip(keys, names, is_device, strict=True)
    ]


def _stream(thread: Any) -> int:
    """The number of a stream; recorders of 2021 wrote "stream 7" for stream 7."""
    match = _STREAM_NUMBER.match(thread) if isinstance(thread, str) else None
    return int(match[1]) if match else _number(thread)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1
