"""Reader of what AMD's `rocprofv3 --output-format json` writes: its records, as trace events of JSON.

Source: ROCm/rocprofiler-sdk, source/lib/output/generateJSON.cpp, and pc_sampling.h for stall reasons.
"""

import re
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, TypeVar

import msgspec

from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, most_expanded, whole
from stepscope.read.chrome.trace_events import read_parts
from stepscope.read.shared import WarningLog, columns_of, parse_json
from stepscope.trace.builder import build
from stepscope.trace.schema import INSTRUCTION_SAMPLES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

T = TypeVar("T")
_NONE: list[Any] = []
_GPU = 2  # the type of an agent
_SHORT = 256  # letters of a name or an instruction, and of a path a quarter: many records may share one
_RECORDS = ("kernel_dispatch", "memory_copy", "hip_api", "hsa_api", "rccl_api", "marker_api")
# NVIDIA's word where AMD records the same: the instruction of another warp was issued.
_WORDS = {"arbiter_not_win": "not_selected", "": "reason not recorded"}
_REASONS = (  # AMD's others, as of pc_sampling.h; what a later version adds counts as other_wait
    *("none", "no_instruction_available", "alu_dependency", "waitcnt", "internal_instruction"),
    *("barrier_wait", "arbiter_win_ex_stall", "other_wait", "sleep_wait"),
)
_PLACE = re.compile(r"(.+):(\d{1,9})$")  # of source; the calls that it was inlined into follow " -> "


def read_rocprofv3(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read JSON of rocprofv3, as every `Reader` does."""
    log = WarningLog()
    text = whole(file, gzipped, log, progress).decode("utf-8", "replace")
    try:
        processes = _at(parse_json(text), _NONE, "rocprofiler-sdk-tool")
    except ValueError as error:
        raise IngestError(f"the JSON of rocprofv3 is damaged: {error}; record it again") from error
    log("unread_process", "records of further processes were not read", max(len(processes) - 1, 0))
    process = processes[0] if processes else {}
    gpus = [agent for agent in _at(process, _NONE, "agents") if _at(agent, 0, "type") == _GPU]
    devices = [{"id": number, "name": _at(gpu, "", "product_name")} for number, gpu in enumerate(gpus)]
    records = {category: _records(process, category, log) for category in _RECORDS}
    handles = {_at(gpu, -1, "id", "handle"): number for number, gpu in reversed([*enumerate(gpus)])}
    events = list(_events(process, records, handles, most_expanded(len(text)) // 8))
    if not events:
        raise IngestError("rocprofv3 recorded no kernel and no call; record with `--kernel-trace`")
    as_events = BytesIO(msgspec.json.encode({"deviceProperties": devices, "traceEvents": events}))
    trace = build(read_parts(as_events, False, lambda size: None))
    place = {source: event for event, source in enumerate(trace.events["source"].tolist())}
    rows = list(_samples(process, records["kernel_dispatch"], place, log))
    samples = columns_of([column.name for column in INSTRUCTION_SAMPLES.columns], rows)
    return trace.with_table(Table(INSTRUCTION_SAMPLES, samples)).with_warnings(log.rows())


def _at(value: Any, otherwise: T, *keys: str | int) -> T:
    """What lies inside of JSON, if it is of the type of `otherwise`."""
    for key in keys:
        if isinstance(key, str):
            value = value.get(key) if isinstance(value, dict) else None
        else:
            value = value[key] if isinstance(value, list) and 0 <= key < len(value) else None
    return value if isinstance(value, type(otherwise)) else otherwise


def _records(process: Any, category: str, log: WarningLog) -> list[Any]:
    found = _at(process, _NONE, "buffer_records", category)
    timed = [one for one in found if _at(one, 0, "start_timestamp") > 0]
    log("unread_record", "skipped records without a time", len(found) - len(timed))
    return timed


def _events(process: Any, records: dict[str, list[Any]], gpus: dict[int, int], letters: int) -> Iterator[Any]:
    """The records as trace events, kernels first; `gpus` by handle. After `letters`, names are cut."""
    symbols, said = _at(process, _NONE, "kernel_symbols"), _at(process, _NONE, "strings", "marker_api")
    kernels = {_at(one, -1, "kernel_id"): _at(one, "", "formatted_kernel_name") for one in symbols}
    messages = {_at(one, -1, "key"): _at(one, "", "value") for one in said}
    for category, found in records.items():
        for record in found:
            place, name, about = _place_of(category, record, gpus), "", {}
            correlation = _at(record, 0, "correlation_id", "internal")
            if category == "kernel_dispatch":
                name = kernels.get(_at(record, -1, "dispatch_info", "kernel_id"), "") or "kernel"
                about = _launch(record)
            elif category == "memory_copy":
                about = {"bytes": _at(record, 0, "bytes")}
            elif category == "marker_api":
                name = messages.get(correlation, "")
            operation = _at(record, -1, "kind"), "operations", _at(record, -1, "operation")
            name = name or _at(process, "call", "strings", "buffer_records", *operation)
            name, letters = name if letters > 0 else name[:_SHORT], letters - len(name)
            start, end = (_at(record, 0, f"{side}_timestamp") for side in ("start", "end"))
            times = (start, max(end - start, 0))  # as texts of microseconds, which are exact
            ts, dur = (msgspec.Raw(f"{ns // 1000}.{ns % 1000:03}".encode()) for ns in times)
            arguments = {**about, "correlation": correlation} if correlation else about
            yield {"ph": "X", "cat": category, "name": name, **place, "ts": ts, "dur": dur, "args": arguments}


def _place_of(category: str, record: Any, gpus: dict[int, int]) -> dict[str, int | str]:
    if category not in ("kernel_dispatch", "memory_copy"):
        return {"pid": "process", "tid": _at(record, 0, "thread_id")}
    agents = (("dispatch_info", "agent_id"), ("dst_agent_id",), ("src_agent_id",))
    handles = [_at(record, -1, *keys, "handle") for keys in agents]
    device = next((gpus[handle] for handle in handles if handle in gpus), 0)
    queue = _at(record, 0, "dispatch_info", "queue_id", "handle")
    return {"pid": device, "tid": _at(record, queue, "stream_id", "handle")}  # streams since ROCm 7


def _launch(kernel: Any) -> dict[str, Any]:
    """How a kernel was launched, under Kineto's names."""
    block = [max(_at(kernel, 1, "dispatch_info", "workgroup_size", axis), 1) for axis in "xyz"]
    threads = [_at(kernel, 1, "dispatch_info", "grid_size", axis) for axis in "xyz"]
    grid = [-(-size // one) for size, one in zip(threads, block, strict=True)]
    shared = _at(kernel, 0, "dispatch_info", "group_segment_size")
    return {"grid": grid, "block": block, "shared memory": shared}


def _samples(
    process: Any, kernels: list[Any], place: dict[int, int], log: WarningLog
) -> Iterator[tuple[int, str, str, str, int, int]]:
    """Rows of `INSTRUCTION_SAMPLES`, tied by dispatch; `place` is the event of each trace event."""
    dispatches = (_at(one, -1, "dispatch_info", "dispatch_id") for one in kernels)
    event = {dispatch: place.get(at, -1) for at, dispatch in enumerate(dispatches)}
    counted: Counter[tuple[int, str, int, int]] = Counter()
    for method in ("host_trap", "stochastic"):
        for one in _at(process, _NONE, "buffer_records", f"pc_sample_{method}"):
            kernel = event.get(_at(one, -2, "record", "dispatch_id"), -1)
            offset = _at(one, 0, "record", "pc", "code_object_offset")
            reason = _at(one, "", "record", "snapshot", "stall_reason").rpartition("_REASON_")[2].lower()
            reason = _WORDS.get(reason, reason if reason in _REASONS else "other_wait")
            waited = reason if not _at(one, 0, "record", "wave_issued") else "selected"
            counted[kernel, waited, _at(one, -1, "inst_index"), offset] += 1
    for (kernel, reason, index, offset), count in counted.items():
        text = _at(process, "", "strings", "pc_sample_instructions", index)[:_SHORT]
        comment = _at(process, "", "strings", "pc_sample_comments", index)[: 4 * _SHORT]
        match = _PLACE.match(comment.partition(" -> ")[0])
        file, line = (match[1], int(match[2])) if match else ("", -1)
        if kernel < 0:
            message = "samples of kernels that the file does not have; record with `--kernel-trace`"
            log("untied_samples", message, count)
        else:
            message = "samples of instructions that rocprofv3 could not read; they count for their reason"
            log("unknown_instructions", message, 0 if text else count)
            yield kernel, reason, text and f"{text} +0x{offset:04x}", file, line, count
