"""Formats that are recognized but not read, each with advice on what to do instead.

Sources: the formats' own specifications for the first bytes; the first lines that the tools print.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.errors import IngestError

_MESSAGE = rb"(?=.{0,511}\0)\x0a[\x80-\xff]{0,9}[\x00-\x7f][\x08-\xfa]"
PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # by protocol
_LZ4 = rb"\x04\x22\x4d\x18"
_UNPACK = "unpack it and open a trace or the folder in it"
_NSYS = "export the recording with `nsys export --type sqlite FILE` and open that"
_TIMELINE = "it has no times of events; record with torch.profiler or `nsys profile` instead"
_NO_TIMES = "it has operators and what they depend on; give the Kineto trace of the same run"
_NEEDS = f"{_NO_TIMES}, and this one to `stepscope whatif` with --execution-trace"
_HANGS = "`stepscope ranks FOLDER` says why the job hangs, of the dumps of its ranks"
_TOTALS = "it has totals and no times; give a Chrome trace of Proton, or one of torch.profiler"
_SAMPLES = "it has samples and no steps; record the script with `stepscope run` or torch.profiler"


def _bytes(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda head: compiled.match(head) is not None


def like(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a file's first bytes, after a byte order mark and white space, are those of a pattern."""
    compiled = re.compile(pattern)
    # Of a bounded text, since a pattern may take the square of its length.
    return lambda head: compiled.match(head[:2048].removeprefix(b"\xef\xbb\xbf").lstrip()) is not None


_LOG, _HATCHET = like(rb"\[\d{4}-\d\d-\d\d[T ]\d\d:"), like(rb'\[\s*\{\s*"children"')


def is_trace_events(head: bytes) -> bool:
    """Whether a text may be JSON of trace events: an object or a list, and no other list that is known."""
    return head[:1] == b"{" or (head[:1] == b"[" and not _LOG(head) and not _HATCHET(head))


def is_dump_head(head: bytes) -> bool:
    """Whether a file's first bytes name what dumps of PyTorch's flight recorder have, and no trace."""
    has_entries = b"profiling_name" in head and (b"record_id" in head or b"seq_id" in head)
    return has_entries or (b"pg_config" in head and b"distributedInfo" not in head)


# In order: the test of a file's first bytes, the name of the format, and advice.
FOREIGN: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (_bytes(rb"\x28\xb5\x2f\xfd"), "zstd data inside compressed data", "decompress it once"),
    (_bytes(rb"\xfd7zXZ\0"), "xz data", "decompress it with `xz -d` and open that"),
    (_bytes(rb"BZh"), "bzip2 data", "decompress it with `bzip2 -d` and open that"),
    (
        _bytes(rb"(" + _LZ4 + rb".{0,53})?memray\0"),
        "a recording of memray",
        "record memory with `stepscope run --memory` and open that",
    ),
    (_bytes(_LZ4), "lz4 data", "decompress it with `lz4 -d` and open that"),
    (_bytes(rb"\x1f\x8b"), "gzip data inside gzip data", "decompress it with `gunzip` once"),
    (_bytes(rb".{257}ustar"), "a tar archive", _UNPACK),
    (_bytes(rb"7z\xbc\xaf\x27\x1c|Rar!"), "an archive", _UNPACK),
    (
        lambda head: head.startswith(PICKLE) and is_dump_head(head),
        "a dump of PyTorch's flight recorder",
        _HANGS,
    ),
    (
        _bytes(b"|".join(PICKLE)),
        "a pickle other than a memory snapshot of PyTorch",
        "stepscope never unpickles; give a trace exported as JSON",
    ),
    (_bytes(rb"\x0aNVIDIA"), "an Nsight Systems report", _NSYS),
    (_bytes(rb"NVR\0"), "an Nsight Compute report", _TIMELINE),
    (_bytes(rb"PERFILE2"), "a recording of Linux perf", _SAMPLES),
    (_bytes(rb"\x0a\x04\x08\x01\x10\x02"), "a profile of pprof, such as JAX's of memory", _SAMPLES),
    (_bytes(rb"[\x80-\xff]{0,2}[\x00-\x7f]\x0a\x05\d\.\d\.\d"), "an execution trace of Chakra", _NO_TIMES),
    (_bytes(rb"\xfb[()]"), "a file of statistics of cProfile", _TIMELINE),
    (_bytes(rb"stepscope watch "), "the file of a watched run", "`stepscope FILE` shows where its time went"),
    (
        _bytes(rb".{0,52}brain\.Event:"),
        "an event file of TensorBoard",
        "open the folder `plugins/profile` next to it, which has the traces",
    ),
    (
        _bytes(_MESSAGE),
        "a protobuf message, and no trace of Perfetto",
        "give the recording as JSON (a Chrome trace)",
    ),
    (like(rb'==PROF==|"ID","Process ID","Process Name"'), "a table of Nsight Compute", _TIMELINE),
    (like(rb"==\d+== (NVPROF|Profiling)"), "a summary of nvprof", _TIMELINE),
    (like(rb'"?Time ?\(%\)"?,"?Total Time'), "a summary of `nsys stats`", _NSYS),
    (
        like(
            rb'"?Index"?,"?KernelName"?,|"Name","Calls","TotalDurationNs"'
            rb'|"Kind","(Agent_Id|Direction)"|"Domain","Function"|"Correlation_Id","Dispatch_Id"'
            rb'|"?Sample_Timestamp"?,'
        ),
        "a table of rocprof",
        "record with rocprofv3 and `--output-format json`, and open that",
    ),
    (like(rb'"?AMD uProf|"?Function[^\n,\t]*"?[,\t]"?CPU Time'), "a table of a sampling profiler", _SAMPLES),
    (
        like(rb"-{8,}  -{8,}"),
        "a printed table of torch.profiler",
        "give the trace of the same run: `prof.export_chrome_trace(FILE)`",
    ),
    (like(rb"-+ DeepSpeed Flops Profiler -+"), "a summary of DeepSpeed", _TIMELINE),
    (_LOG, "a log, such as DeepSpeed's", _TIMELINE),
    (_HATCHET, "a profile for hatchet, such as Proton's", _TOTALS),
    (like(rb"[^\n]+ \d+ +(\[\d+\] +)?\d+\.\d+: +\d+ [\w:-]+:"), "the output of `perf script`", _SAMPLES),
    (
        like(rb"=== (API|Device|Kernel \w+) Timing Summary ==="),
        "a summary of Intel's unitrace",
        "record with `unitrace --chrome-call-logging --chrome-kernel-logging` and open the JSON",
    ),
    (like(rb"(# callgrind format\n)?version: 1\ncreator: "), "a profile of callgrind", _TIMELINE),
    (like(rb"_ +\._ +__/__ "), "a printed profile of pyinstrument", _SAMPLES),
    (like(rb"([^\n;]*\d+\r?\n)?[^\n]+;[^\n]+ \d+\r?\n"), "a file of collapsed stacks", _SAMPLES),
    (like(rb"(?i)<!doctype html|<html"), "a web page", "download the trace itself"),
    (like(rb"<\?xml|<svg"), "XML, such as a picture", "give the recording that it was made from"),
)

_SCRIPT = ("a Python script", "record it with `stepscope run` and open the capture that this writes")

# Of JSON objects without events: keys that they have, the name of the format, and advice.
_JSON = (
    ({"nodes", "schema"}, "a PyTorch execution trace", _NEEDS),
    ({"profiles", "shared"}, "a profile of speedscope", _SAMPLES),
    ({"root_frame", "sample_count"}, "a profile of pyinstrument", _SAMPLES),
    ({"frame_records", "sample_count"}, "a session of pyinstrument", _SAMPLES),
    ({"nodes", "timeDeltas"}, "a CPU profile of V8", _SAMPLES),
    ({"meta", "threads", "libs"}, "a profile of Firefox", _SAMPLES),
    ({"files", "elapsed_time_sec"}, "a profile of scalene", _SAMPLES),
    ({"entries", "pg_config"}, "a dump of PyTorch's flight recorder", _HANGS),
)


def refuse_foreign(head: bytes, name: str) -> None:
    """Raise an IngestError with advice if a file is of a known format that is not supported."""
    formats = [(what, advice) for matches, what, advice in FOREIGN if matches(head)]
    formats += [_SCRIPT] if name.endswith(".py") else []
    if formats:
        raise IngestError("this is {}: {}".format(*formats[0]))


def foreign_json(data: Mapping[str, Any]) -> str:
    """What a JSON object without events is, and what to do; empty if unknown.

    Example:
        >>> foreign_json({"profiles": [], "shared": {}})[:33]
        'this is a profile of speedscope: '
    """
    return next((f"this is {what}: {advice}" for keys, what, advice in _JSON if keys <= data.keys()), "")
