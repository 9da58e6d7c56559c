"""Reader of `.stepscope` captures (docs/reference/capture_format.md), which are zip archives.

Nothing is extracted: some members are read by their exact names, none beyond a stated size.
"""

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

from msgspec import Meta, Struct

from stepscope.base.typed_data import convert, decode
from stepscope.errors import IngestError, TraceError
from stepscope.read.byte_stream import MOST_AT_ONCE, Progress
from stepscope.read.chrome.trace_events import read_trace_events
from stepscope.read.memory_snapshot.memory_snapshot import with_snapshot
from stepscope.read.model_json import parse_model
from stepscope.read.recorded.contexts_json import with_recorded_contexts
from stepscope.read.recorded.members_json import parse_compiled, with_memory, with_samples
from stepscope.read.shared import AGAIN, MOST_NOTES, MOST_RANKS, checked, parse_json
from stepscope.read.xplane.xplane import read_xplane
from stepscope.trace.concat import of_rank
from stepscope.trace.portable import from_bytes
from stepscope.trace.trace import Metadata, Trace, WarningRow

VERSION = 1
_MANIFEST, _MODULES, _CONTEXTS = "manifest.json", "modules.json", "contexts.json"
_COMPILED, _MEMORY, _SNAPSHOT = "compiled.json", "memory.json", "snapshot.pickle"
_SAMPLES = "samples.json"
TABLES = "tables.msgpack"  # of `stepscope redact`, in place of all but the manifest
_TRACES = {"trace.json": read_trace_events, "trace.xplane.pb": read_xplane}
_LIMITS = {
    _MANIFEST: 16 << 20,
    _MODULES: 256 << 20,
    _COMPILED: 256 << 20,
    _CONTEXTS: 1 << 30,
    _SAMPLES: 64 << 20,
    _MEMORY: 4 << 30,
    _SNAPSHOT: 4 << 30,
    TABLES: 64 << 30,
    "trace.json": 64 << 30,
    "trace.xplane.pb": MOST_AT_ONCE,
}
_MOST_MEMBERS = 1000  # a capture has a dozen, and 64 windows
_SMALL_BYTES, _MOST_EXPANSION = 32 << 20, 100  # recordings shrink to a fifth or a fiftieth


Duration = Annotated[int, Meta(ge=0, le=1 << 60)]


class Loader(Struct):
    """The settings of a data loader that the analysis uses."""

    workers: int | None = None
    positions: Duration = 0
    padded: Duration = 0
    behind_all: Duration = 0
    collate: str = ""
    collate_file: str = ""
    collate_line: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0


class Created(Struct, rename={"class_": "class"}):
    """The call that created an object, which advice names and changes."""

    what: str
    class_: str
    file: str
    line: int
    call: str
    source: str


class PartTimes(Struct):
    """Elapsed time and CPU time of a part of a step: medians, and a mean without the longest."""

    median_ns: Duration
    cpu_ns: Duration
    p10_ns: Duration | None = None
    p90_ns: Duration | None = None
    recurring_ns: Duration | None = None


class PartChanges(Struct):
    """When parts of steps began: the time since the first of them, and which part."""

    parts: list[str]
    since_unix_ns: int
    after_ns: list[Duration]
    part: list[Annotated[int, Meta(ge=0)]]


class TimedSteps(Struct):
    """Times of steps by the clocks of the process that recorded them."""

    count: int
    median_ns: Duration
    p10_ns: Duration
    p90_ns: Duration
    cpu_ns: Duration | None = None
    cpu_p10_ns: Duration | None = None
    cpu_p90_ns: Duration | None = None
    process_cpu_ns: Duration | None = None
    page_faults: Duration | None = None
    page_fault_ns: Duration | None = None
    elapsed_ns: Duration | None = None
    queued_ns: Duration | None = None
    used_ns: Duration | None = None
    parts: dict[str, PartTimes] = {}
    changes: PartChanges | None = None


class RecordedPlace(Struct):
    """Where a stage of the run begins."""

    stage: str
    function: str
    file: str
    line: int
    count: int
    ns: Duration


class RecordedTraining(Struct, rename={"class_": "class"}):
    """One of the trainings of a run."""

    first_optimizer: int
    optimizers: int
    class_: str
    function: str
    file: str
    line: int
    steps: int
    step_ns: Duration
    elapsed_ns: Duration
    recorded: bool


class RecordedWorkerStarts(Struct):
    """Starts of workers of DataLoaders, and what the training loop waited for."""

    starts: int
    workers: int
    starting_ns: Duration
    first: int
    first_ns: Duration
    stopping_ns: Duration
    batches: int
    waiting_ns: Duration
    loaders: int
    datasets: int


class RecordedRun(Struct):
    """The whole run by stage, as the process that recorded it measured it."""

    ended: bool
    elapsed_ns: Duration
    steps: int
    data_loading_ns: Duration
    stages_ns: dict[str, Duration]
    places: list[RecordedPlace]
    trainings: list[RecordedTraining] = []
    worker_starts: RecordedWorkerStarts | None = None


class Manifest(Struct):
    """The form of a manifest; other keys are allowed."""

    format: Literal["stepscope capture"]
    version: int
    outcome: str
    message: str
    command: list[str] = []
    framework: str | None = None
    framework_version: str | None = None
    devices: list[dict[str, Any]] = []
    rank: Annotated[int, Meta(ge=-1, lt=MOST_RANKS)] = 0
    world_size: Annotated[int, Meta(le=MOST_RANKS)] = 1
    cwd: str | None = None
    created_unix_ns: int | None = None
    cpu_count: int | None = None
    cpus_usable: int | None = None
    threads: int | None = None
    cpu_capability: str | None = None
    awaited: float = 0.0
    others: list[str] = []
    steps_recorded: list[int] = []
    loaders: list[Loader] = []
    created: list[Created] = []
    updated_modules: dict[str, list[str]] = {}
    recorded_steps: TimedSteps | None = None
    unrecorded_steps: TimedSteps | None = None
    run_shares: RecordedRun | None = None
    warnings: list[str] = []


def read_capture(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """The trace that a `.stepscope` capture holds; empty, with a warning, if nothing was recorded.

    Raises IngestError if the file is damaged, encrypted, or another kind of archive.
    """
    if gzipped:
        raise IngestError(
            "the .stepscope capture is compressed once more; decompress it with `gunzip` or `zstd -d`"
        )
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(archive)
            return _read(archive, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError) as error:
        raise IngestError(f"the .stepscope capture is damaged or truncated ({error}); {AGAIN}") from error


def _check_members(archive: zipfile.ZipFile) -> None:
    names = archive.namelist()
    if len(names) > _MOST_MEMBERS:
        raise IngestError(f"expected a .stepscope capture, found a zip archive of {len(names):,} members")
    if _MANIFEST not in names:
        hint = " (a PyTorch checkpoint)" if any(n.endswith("data.pkl") for n in names) else ""
        members = ", ".join(map(repr, names[:3])) or "nothing"
        raise IngestError(
            f"expected a .stepscope capture with {_MANIFEST}, found a zip archive of {members}{hint}"
            "; give a capture or a trace outside an archive"
        )
    for info in archive.infolist():
        _check_member(info, names.count(info.filename))


def _check_member(info: zipfile.ZipInfo, times: int) -> None:
    limit = _LIMITS.get(info.filename)
    if limit is None:
        return
    if times > 1:
        raise IngestError(f"expected one {info.filename} in the capture, found {times}; {AGAIN}")
    if info.flag_bits & 1:
        raise IngestError(f"the capture's {info.filename} is encrypted, which is not supported")
    most = min(limit, max(_SMALL_BYTES, _MOST_EXPANSION * info.compress_size))
    if info.file_size > most:
        raise IngestError(
            f"the capture's {info.filename} expands {info.compress_size:,} bytes to "
            f"{info.file_size >> 20:,} MiB, more than the {most >> 20:,} MiB of any recording; {AGAIN}"
        )


def _content(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> bytes:
    """A member, never more than its stated size: `ZipFile.read` unpacks all before it looks at that."""
    info = member if isinstance(member, zipfile.ZipInfo) else archive.getinfo(member)
    with archive.open(info) as file:
        return file.read(info.file_size)


def _read(archive: zipfile.ZipFile, progress: Progress) -> Trace:
    recorded, manifest = _manifest(_content(archive, _MANIFEST))
    members = archive.namelist()
    if TABLES in members:
        return _stored(_content(archive, TABLES))
    model = parse_model(_content(archive, _MODULES)) if _MODULES in members else {}
    trace = _recording(archive, progress)
    metadata = _metadata(trace.metadata, recorded, manifest, model)
    if _COMPILED in members:
        compiled = parse_compiled(_content(archive, _COMPILED))
        metadata = replace(metadata, properties={**metadata.properties, "compiled": compiled})
    trace = of_rank(Trace(trace.tables, metadata, trace.arguments), manifest.rank)
    if _SAMPLES in members:
        trace = with_samples(trace, _content(archive, _SAMPLES))
    if _MEMORY in members:
        trace = with_memory(trace, _content(archive, _MEMORY))
    if _SNAPSHOT in members:
        trace = with_snapshot(trace, _content(archive, _SNAPSHOT))
    if _CONTEXTS in members:
        trace = with_recorded_contexts(trace, _content(archive, _CONTEXTS))
    return trace.with_warnings(_warnings(manifest, members))


def _stored(content: bytes) -> Trace:
    """The tables that `stepscope redact` wrote, whose manifest is one of a capture, if any."""
    try:
        trace = from_bytes(content)
    except TraceError as error:
        raise IngestError(str(error)) from error
    with checked(TABLES):
        if trace.metadata.capture:
            convert(dict(trace.metadata.capture), Manifest)
    return trace


def _warnings(manifest: Manifest, members: list[str]) -> list[tuple[str, str, int]]:
    warnings = [("capture", text, 1) for text in manifest.warnings[:MOST_NOTES]]
    recorded = bool({*_TRACES, _CONTEXTS}.intersection(members))
    if manifest.outcome != "complete" or not recorded:
        code = manifest.outcome if recorded else "nothing_recorded"
        warnings.append((code, f"the recording ended as `{manifest.outcome}`: {manifest.message}", 1))
    unread = [name for name in members if name not in _LIMITS and not MEMBER.match(name)]
    if unread:
        names = ", ".join(name[:100] for name in unread[:3]) + (", …" if unread[3:] else "")
        message = f"skipped {names} of the capture: unknown member{'s' * (len(unread) > 1)}"
        warnings.append(("unread_member", message, len(unread)))
    return warnings


def _manifest(text: bytes) -> tuple[dict[str, Any], Manifest]:
    with checked(_MANIFEST):
        recorded = parse_json(text.decode("utf-8"))
        manifest = convert(recorded, Manifest)
    if manifest.version > VERSION:
        raise IngestError(
            f"the capture has version {manifest.version}, this stepscope reads versions up to "
            f"{VERSION}; upgrade it: pip install -U stepscope"
        )
    return recorded, manifest


def _recording(archive: zipfile.ZipFile, progress: Progress) -> Trace:
    """The profiler's trace; empty if it recorded nothing."""
    name = next((name for name in _TRACES if name in archive.namelist()), None)
    if name is None:
        return Trace({})
    info = archive.getinfo(name)
    ratio = info.compress_size / max(info.file_size, 1)
    with archive.open(info) as member:
        return _TRACES[name](cast(BinaryIO, member), False, lambda size: progress(round(size * ratio)))


def _metadata(
    traced: Metadata, recorded: Mapping[str, Any], manifest: Manifest, model: Mapping[str, Any]
) -> Metadata:
    return replace(
        traced,
        framework=manifest.framework or traced.framework,
        framework_version=manifest.framework_version or traced.framework_version,
        devices=_devices(manifest.devices, traced.devices),
        ranks=(manifest.rank,),
        world_size=manifest.world_size,
        capture=recorded,
        model=model,
    )


def _devices(
    recorded: Sequence[Mapping[str, Any]], traced: tuple[Mapping[str, Any], ...]
) -> tuple[Mapping[str, Any], ...]:
    """The devices of the recorder, each with what the profiler says of it, too."""
    by_number = {str(device.get("id")): device for device in traced}
    merged = tuple({**by_number.get(str(device.get("index")), {}), **device} for device in recorded)
    return merged or traced


MEMBER = re.compile(r"^window-(\d{12})-(\d{12})\.xplane\.pb$")
_LARGEST_BYTES, _MOST = 64 << 20, 64


@dataclass(frozen=True)
class WindowProfiles:
    """What a capture has of its run in windows."""

    traces: list[Trace]  # one of each window, before annotation
    recorded_s: float  # how long the windows were, in all
    elapsed_s: float  # how long the run was
    warnings: list[WarningRow]  # what could not be read


class _Elapsed(Struct):
    elapsed_ns: int = 0


def read_windows(path: Path) -> WindowProfiles | None:
    """The windows of a capture of contexts, which has been read; None where it has none."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if MEMBER.match(name)][:_MOST]
        if not names:
            return None
        profiles = {name: _profile(archive, name) for name in names}
        elapsed = decode(_content(archive, _CONTEXTS), _Elapsed)
    traces = {name: trace for name, trace in profiles.items() if isinstance(trace, Trace)}
    warnings = [("window", text, 1) for text in profiles.values() if isinstance(text, str)]
    spans = [match.groups() for match in map(MEMBER.match, traces) if match]
    recorded_s = sum(int(end) - int(begin) for begin, end in spans) / 1e6
    return WindowProfiles(list(traces.values()), recorded_s, elapsed.elapsed_ns / 1e9, warnings)


def _profile(archive: zipfile.ZipFile, name: str) -> Trace | str:
    """The trace of a window, or why there is none."""
    info = archive.getinfo(name)
    if info.flag_bits & 1 or info.file_size > min(_LARGEST_BYTES, _MOST_EXPANSION * info.compress_size):
        return f"skipped {name} of the capture: encrypted, or too large"
    try:
        return read_xplane(BytesIO(_content(archive, info)), False, lambda size: None)
    except (IngestError, zipfile.BadZipFile) as error:
        return f"skipped {name} of the capture: {error}"
