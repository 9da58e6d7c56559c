"""Profiles of short windows of a run, members of a capture of contexts."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from msgspec import Struct

from stepscope.errors import IngestError
from stepscope.ingest.xplane.xplane import read_xplane
from stepscope.trace.trace import Trace, WarningRow
from stepscope.typed_data import decode

MEMBER = re.compile(r"^window-(\d{12})-(\d{12})\.xplane\.pb$")
_LARGEST_BYTES, _MOST = 64 << 20, 64


@dataclass(frozen=True)
class WindowProfiles:
    """What a capture has of its run in windows.

    Attributes:
        traces: one of each window, before annotation.
        recorded_s: how long the windows were, in all.
        elapsed_s: how long the run was.
        warnings: what could not be read.
    """

    traces: list[Trace]
    recorded_s: float
    elapsed_s: float
    warnings: list[WarningRow]


class _Elapsed(Struct):
    elapsed_ns: int = 0


def read_windows(path: Path) -> WindowProfiles | None:
    """The windows of a capture; None where it has none.

    Args:
        path: a capture of contexts, which has been read.
    """
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if MEMBER.match(name)][:_MOST]
        if not names:
            return None
        found = {name: _profile(archive, name) for name in names}
        elapsed = decode(archive.read("contexts.json"), _Elapsed)
    traces = {name: trace for name, trace in found.items() if isinstance(trace, Trace)}
    warnings = [("window", text, 1) for text in found.values() if isinstance(text, str)]
    return WindowProfiles(
        list(traces.values()), _seconds(traces), elapsed.elapsed_ns / 1e9, warnings
    )


def _profile(archive: zipfile.ZipFile, name: str) -> Trace | str:
    """The trace of a window, or why there is none."""
    info = archive.getinfo(name)
    if info.flag_bits & 1 or info.file_size > _LARGEST_BYTES:
        return f"skipped {name} of the capture: encrypted, or too large"
    try:
        return read_xplane(BytesIO(archive.read(info)), False, lambda size: None)
    except (IngestError, zipfile.BadZipFile) as error:
        return f"skipped {name} of the capture: {error}"


def _seconds(names: Iterable[str]) -> float:
    spans = [match.groups() for name in names if (match := MEMBER.match(name))]
    return sum(int(end) - int(begin) for begin, end in spans) / 1e6
