"""Reader of `.stepscope` captures (docs/capture_format.md): zip archives from somebody else's hand.

Nothing is extracted: some members are read by their exact names, none beyond a stated size.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, BinaryIO, Literal, cast

import msgspec
from msgspec import Meta, Struct

from stepscope.errors import IngestError
from stepscope.ingest.contexts import parse_contexts
from stepscope.ingest.json_text import parse_json
from stepscope.ingest.metadata import MOST_RANKS
from stepscope.ingest.model import parse_model
from stepscope.ingest.stream import Progress
from stepscope.ingest.trace_events import read_trace_events
from stepscope.ingest.xplane import LONGEST_BYTES, read_xplane
from stepscope.trace.ranks import of_rank
from stepscope.trace.trace import Metadata, Trace

VERSION = 1
_MANIFEST, _MODULES, _CONTEXTS = "manifest.json", "modules.json", "contexts.json"
_TRACES = {"trace.json": read_trace_events, "trace.xplane.pb": read_xplane}
_LIMITS = {
    _MANIFEST: 16 << 20,
    _MODULES: 256 << 20,
    _CONTEXTS: 1 << 30,
    "trace.json": 64 << 30,
    "trace.xplane.pb": LONGEST_BYTES,
}
_AGAIN = "copy the file again or record it anew"


class Loader(Struct):
    """What of a data loader counts."""

    workers: int | None = None


class Manifest(Struct):
    """What a manifest must hold, where it holds it; other keys may stand beside these."""

    format: Literal["stepscope capture"]
    version: int
    outcome: str
    message: str
    framework: str | None = None
    framework_version: str | None = None
    devices: list[dict[str, Any]] = []
    rank: Annotated[int, Meta(lt=MOST_RANKS)] = 0
    world_size: Annotated[int, Meta(le=MOST_RANKS)] = 1
    cwd: str | None = None
    created_unix_ns: int | None = None
    cpu_count: int | None = None
    cpus_usable: int | None = None
    threads: int | None = None
    steps_recorded: list[int] = []
    loaders: list[Loader] = []
    warnings: list[str] = []


def read_capture(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a `.stepscope` capture.

    Args:
        file: an open binary file at its start.
        gzipped: whether it is gzip, which a capture never is.
        progress: called with bytes read since the last call.

    Returns:
        The trace with its recorded facts; empty, with a warning, where nothing was recorded.

    Raises:
        IngestError: if it is damaged, encrypted, or another kind of archive.
    """
    if gzipped:
        raise IngestError("expected a .stepscope capture as it was written, found it in gzip data; "
                          "decompress it with `gunzip`")  # fmt: skip
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(archive)
            return _read(archive, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise IngestError(
            f"expected a whole .stepscope capture, found a damaged or cut-off one ({error}); "
            + _AGAIN
        ) from error


def _check_members(archive: zipfile.ZipFile) -> None:
    names = archive.namelist()
    if _MANIFEST not in names:
        hint = " (a PyTorch checkpoint)" if any(n.endswith("data.pkl") for n in names) else ""
        found = ", ".join(map(repr, names[:3])) or "nothing"
        raise IngestError(
            f"expected a .stepscope capture with {_MANIFEST}, found a zip archive of {found}{hint}"
            "; give a capture, or a trace that is not in an archive"
        )
    for info in archive.infolist():
        _check_member(info, names.count(info.filename))


def _check_member(info: zipfile.ZipInfo, times: int) -> None:
    limit = _LIMITS.get(info.filename)
    if limit is None:
        return
    if times > 1:
        raise IngestError(f"expected one {info.filename} in the capture, found {times}; {_AGAIN}")
    if info.flag_bits & 1:
        raise IngestError(f"expected a plain {info.filename} in the capture, found it encrypted")
    if info.file_size > limit:
        raise IngestError(
            f"expected {info.filename} of at most {limit >> 20} MiB, "
            f"found {info.file_size >> 20} MiB; {_AGAIN}"
        )


def _read(archive: zipfile.ZipFile, progress: Progress) -> Trace:
    recorded, manifest = _manifest(archive.read(_MANIFEST))
    members = archive.namelist()
    model = parse_model(archive.read(_MODULES)) if _MODULES in members else {}
    trace = _recording(archive, progress)
    metadata = _metadata(trace.metadata, recorded, manifest, model)
    trace = of_rank(Trace(trace.tables, metadata, trace.arguments), manifest.rank)
    if _CONTEXTS in members:
        recorded_contexts = parse_contexts(archive.read(_CONTEXTS))
        trace = trace.with_table(recorded_contexts.contexts).with_table(recorded_contexts.metrics)
        trace = trace.with_warnings(recorded_contexts.warnings)
    return trace.with_warnings(_warnings(manifest, members))


def _warnings(manifest: Manifest, members: list[str]) -> list[tuple[str, str, int]]:
    found = [("capture", text, 1) for text in manifest.warnings]
    recorded = bool({*_TRACES, _CONTEXTS}.intersection(members))
    if manifest.outcome != "complete" or not recorded:
        code = manifest.outcome if recorded else "nothing_recorded"
        found.append((code, f"the recording ended as `{manifest.outcome}`: {manifest.message}", 1))
    found += [
        ("unread_member", f"the capture's {name} is not read", 1)
        for name in members
        if name not in _LIMITS
    ]
    return found


def _manifest(text: bytes) -> tuple[dict[str, Any], Manifest]:
    try:
        recorded = parse_json(text.decode("utf-8"))
        manifest = msgspec.convert(recorded, Manifest)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise IngestError(
            f"expected the capture's {_MANIFEST} to be valid, found: {error}; {_AGAIN}"
        ) from error
    if manifest.version > VERSION:
        raise IngestError(
            f"expected a capture of version {VERSION} at most, found version {manifest.version}; "
            "install a newer stepscope (pip install -U stepscope)"
        )
    return recorded, manifest


def _recording(archive: zipfile.ZipFile, progress: Progress) -> Trace:
    """What the profiler recorded; empty where it recorded nothing."""
    name = next((name for name in _TRACES if name in archive.namelist()), None)
    if name is None:
        return Trace({})
    info = archive.getinfo(name)
    ratio = info.compress_size / max(info.file_size, 1)
    with archive.open(info) as member:
        return _TRACES[name](
            cast(BinaryIO, member), False, lambda size: progress(round(size * ratio))
        )


def _metadata(
    found: Metadata, recorded: Mapping[str, Any], manifest: Manifest, model: Mapping[str, Any]
) -> Metadata:
    return replace(
        found,
        framework=manifest.framework or found.framework,
        framework_version=manifest.framework_version or found.framework_version,
        devices=tuple(manifest.devices) or found.devices,
        ranks=(manifest.rank,),
        world_size=manifest.world_size,
        capture=recorded,
        model=model,
    )
