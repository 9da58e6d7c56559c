"""Detect communication between processes: by name, or by the call that launched it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from stepscope.annotate.device.kernel_kinds import kind_of
from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.links.launches import launch_of
from stepscope.annotate.names.communication_names import (
    GROUP_ARGUMENTS,
    STREAM,
    is_communication_call,
    is_communication_kernel,
    is_exchange,
    is_host_communication,
)
from stepscope.arrays import Ids, Mask
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import CATEGORIES, TRACK_KINDS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_KIND = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast"
                   r"|reduce|gather|scatter|barrier", re.IGNORECASE)  # fmt: skip
_GROUP = ("Process Group Name", "Process Group Ranks", "Group size")
_DTYPE_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "half": 2,
    "bfloat16": 2, "short": 2, "int": 4, "float": 4, "long": 8, "double": 8,
}  # fmt: skip


def mark_communication(trace: Trace) -> Trace:
    """Set the category `communication` for kernels and host-side collectives that communicate.

    A kernel communicates if its name matches a library (`names.communication_names`), if events of
    its name have process-group arguments, if the innermost operator around its launch is a
    collective, if it exchanges experts in a range that says so, or if it has no known kind and runs
    on a stream named for communication. A stream or thread that mostly communicates becomes a
    communication track. Bytes come from the recorded element counts.
    """
    events = trace.events
    category, name = events.text("category"), events.text("name")
    kernel = category.mask("kernel")
    communicates = name.where(is_communication_kernel) | _with_group_arguments(trace, kernel)
    communicates |= _launched_by_collective(trace) | _exchanges_experts(trace)
    communicates |= _on_named_stream(trace)
    communicates &= kernel
    host_work = category.mask("annotation", "cpu_op") & name.where(is_host_communication)
    communicates |= on_host(trace) & host_work
    code = np.where(communicates, CATEGORIES.index("communication"), category.codes)
    trace = trace.with_events(
        category=Text(code.astype(np.int8), CATEGORIES), bytes=_bytes(trace, communicates)
    )
    return trace.with_table(_tracks(trace, communicates))


def _with_group_arguments(trace: Trace, kernel: Mask) -> Mask:
    """Kernels with the name of one that has a collective or a process group as argument."""
    rows = np.flatnonzero(kernel & (trace.events["source"] >= 0))
    names, first = np.unique(trace.events["name"][rows], return_index=True)
    source = trace.events["source"][rows[first]]
    order = np.argsort(source, kind="stable")
    texts = trace.arguments.texts(source[order]) if len(order) else []
    marked = [bool(GROUP_ARGUMENTS.search(text)) for text in texts]
    result: Mask = np.isin(trace.events["name"], names[order][np.array(marked, np.bool_)])
    return result


def _launched_by_collective(trace: Trace) -> Mask:
    call = trace.events.text("name").where(is_communication_call)
    operator = trace.events.text("category").mask("cpu_op", "annotation")
    return _launched_in(trace, operator, call)


def _exchanges_experts(trace: Trace) -> Mask:
    """Kernels named dispatch or combine, launched in a range of such a name."""
    named = trace.events.text("name").where(is_exchange)
    annotation = trace.events.text("category").mask("annotation")
    return named & _launched_in(trace, annotation, named)


def _launched_in(trace: Trace, marks: Mask, wanted: Mask) -> Mask:
    """Device work whose launch has a wanted event as the innermost of the marks around it."""
    around = inherit(trace.events["parent"], np.where(marks, wanted, -1))
    caller = launch_of(trace)
    launched: Mask = (caller >= 0) & (around[caller] == 1)
    return launched


def _on_named_stream(trace: Trace) -> Mask:
    """Device work of no known kind on a stream that is named for communication."""
    events = trace.events
    tracks = trace["tracks"].text("name").where(lambda name: bool(STREAM.search(name.lower())))
    if not tracks.any():
        return np.zeros(len(events), np.bool_)
    return tracks[events["track"]] & events.text("name").where(lambda n: kind_of(n) == "other")


def _tracks(trace: Trace, communicates: Mask) -> Table:
    """Set the kind of tracks that communicate for most of their busy time."""
    events, tracks = trace.events, trace["tracks"]
    top = events["parent"] < 0
    time = np.bincount(events["track"][top], events["duration_ns"][top], len(tracks))
    work = communicates & (top | (events["category"] == CATEGORIES.index("communication")))
    communication_ns = np.bincount(events["track"][work], events["duration_ns"][work], len(tracks))
    kind = np.where((communication_ns > 0) & (2 * communication_ns > time), 2, tracks["kind"])
    return tracks.with_columns(kind=Text(kind.astype(np.int8), TRACK_KINDS))


def _bytes(trace: Trace, communicates: Mask) -> Ids:
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
    """The kind of a collective and its process group, as far as recorded.

    Example:
        >>> collective_key("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {"Group size": 8})
        ('allreduce', '', '', '8')
    """
    kind = str(arguments.get("Collective name") or (_KIND.search(name) or [name])[0])
    return (kind.lower().replace("_", ""), *(str(arguments.get(key, "")) for key in _GROUP))
