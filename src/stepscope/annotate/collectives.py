"""Which events communicate between processes: by name, or by the call that launched them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.annotate.launches import launch_of
from stepscope.annotate.tracks import on_host
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, TRACK_KINDS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_KERNEL = re.compile(
    r"nccl|rccl|msccl|oneccl|hccl|nvshmem|rocshmem|deep_?ep"
    r"|cross_device_reduce|(one|two)_?shot_?all_?reduce|lamport|multimem"
    r"|all[-_]?reduce|reduce[-_]?scatter|all[-_]?gather|all[-_]?to[-_]?all|sendrecv"
    r"|collective-(permute|broadcast)"
)  # in lower case, which takes half the time of re.IGNORECASE
_BACKENDS = "nccl|rccl|hccl|xccl|gloo|mpi|ucc"
_CALL = re.compile(rf"^((({_BACKENDS}):)|c10d::|_?c10d_functional::|record_param_comms)")
_HOST_WORK = re.compile(r"^(gloo|mpi|ucc):")
_KIND = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast"
                   r"|reduce|gather|scatter|barrier", re.IGNORECASE)  # fmt: skip
_GROUP = ("Process Group Name", "Process Group Ranks", "Group size")
_DTYPE_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2,
    "bfloat16": 2, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8,
}  # fmt: skip


def mark_communication(trace: Trace) -> Trace:
    """Give kernels that communicate, and host threads' collectives, the category communication.

    A kernel communicates if its name says so (not only `nccl`: custom all-reduce kernels have names
    of their own), or if the innermost operator around its launch is a collective. A stream or a
    thread that mostly communicates becomes a communication track. Bytes come from the recorded
    element counts.
    """
    events = trace.events
    category = events.text("category")
    kernel = category.mask("kernel")
    named = events.text("name").where(lambda name: bool(_KERNEL.search(name.lower())))
    communicates = kernel & (named | _launched_by_collective(trace))
    host_work = category.mask("annotation") & events.text("name").where(
        lambda name: bool(_HOST_WORK.match(name))
    )
    communicates |= on_host(trace) & host_work
    code = np.where(communicates, CATEGORIES.index("communication"), category.codes)
    trace = trace.with_events(
        category=Text(code.astype(np.int8), CATEGORIES), bytes=_bytes(trace, communicates)
    )
    return trace.with_table(_tracks(trace, communicates))


def _launched_by_collective(trace: Trace) -> NDArray[np.bool_]:
    events = trace.events
    call = events.text("name").where(lambda name: bool(_CALL.match(name)))
    operator = events.text("category").mask("cpu_op", "annotation")
    around = inherit(events["parent"], np.where(operator, call, -1))
    caller = launch_of(trace)
    launched: NDArray[np.bool_] = (caller >= 0) & (around[caller] == 1)
    return launched


def _tracks(trace: Trace, communicates: NDArray[np.bool_]) -> Table:
    """Tracks, with those that communicate for most of their busy time so called."""
    events, tracks = trace.events, trace["tracks"]
    top = events["parent"] < 0
    time = np.bincount(events["track"][top], events["duration_ns"][top], len(tracks))
    work = communicates & (top | (events["category"] == CATEGORIES.index("communication")))
    spoken = np.bincount(events["track"][work], events["duration_ns"][work], len(tracks))
    kind = np.where((spoken > 0) & (2 * spoken > time), 2, tracks["kind"])
    return tracks.with_columns(kind=Text(kind.astype(np.int8), TRACK_KINDS))


def _bytes(trace: Trace, communicates: NDArray[np.bool_]) -> NDArray[np.int64]:
    events = trace.events
    caller = launch_of(trace)
    collective = events.text("name").mask("record_param_comms")
    call = inherit(events["parent"], np.where(collective, events["id"], -1))
    result = events["bytes"].copy()
    for event in np.flatnonzero(communicates & (result < 0)).tolist():
        origin = call[caller[event]] if caller[event] >= 0 else -1
        for source in (event, origin):
            if source >= 0 and (size := _size(trace, source)) >= 0:
                result[event] = size
                break
    return result


def _size(trace: Trace, event: int) -> int:
    """Bytes of a collective from its recorded element counts and type, or -1."""
    arguments = trace.event_arguments(event)
    width = _DTYPE_BYTES.get(str(arguments.get("dtype", "")).lower())
    counts = [arguments.get(f"{way} msg nelems") for way in ("In", "Out")]
    known = [count for count in counts if isinstance(count, int)]
    return max(known) * width if width and known else -1


def collective_key(name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of a collective and its process group, as far as they are told.

    Example:
        >>> collective_key("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {"Group size": 8})
        ('allreduce', '', '', '8')
    """
    kind = str(arguments.get("Collective name") or (_KIND.search(name) or [name])[0])
    return (kind.lower().replace("_", ""), *(str(arguments.get(key, "")) for key in _GROUP))
