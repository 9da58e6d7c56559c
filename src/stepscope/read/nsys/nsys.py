"""Reader of Nsight Systems recordings, as `nsys export --type sqlite` writes them.

Kernels, copies, memsets and CUDA graphs lie on streams; calls of the CUDA API and NVTX ranges on
threads. What a version does not export is missing in the trace.

Source: https://docs.nvidia.com/nsight-systems/UserGuide/ (SQLite schema reference).
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np

from stepscope.errors import IngestError
from stepscope.read.byte_stream import Progress, most_expanded, on_disk
from stepscope.read.nsys.activities import ACTIVITIES, LATEST_NS, Activities, Database, NsysRecording
from stepscope.read.shared import LONGEST_NS, WarningLog, log_note
from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.builder import Parts, build
from stepscope.trace.missing_records import says_records_missing
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.table import Text
from stepscope.trace.trace import Metadata, Trace

_FACTS = {  # as Kineto calls them
    "smCount": "numSms",
    "totalMemory": "totalGlobalMem",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
}


_OF_NSIGHT = ("META_DATA_EXPORT", "META_DATA_CAPTURE", "DIAGNOSTIC_EVENT", "TARGET_INFO_SESSION_START_TIME")


def _without_events(database: Database) -> str:
    """The message for an export without anything to show, with what the recorder says of it."""
    notes = {" ".join(str(note).split()) for (note,) in database.cells("DIAGNOSTIC_EVENT", "text")}
    said = sorted(note for note in notes if says_records_missing(note))
    return (
        "an Nsight Systems export without CUDA and NVTX events; record with "
        "`nsys profile --trace cuda,nvtx`" + "".join(f"; the recorder reported: {note}" for note in said)
    )


def _other_database(tables: Collection[str]) -> str:
    if "StringTable" in tables:
        return "found a database of nvprof; record with `nsys profile --trace cuda,nvtx` instead"
    if any(name.startswith("rocpd_") for name in tables):
        return (
            "found a database of AMD's rocprofv3; run `rocpd convert -i FILE --output-format "
            "pftrace`, and open what that writes"
        )
    return (
        "found an SQLite database without tables of Nsight Systems; give one that "
        "`nsys export --type sqlite` wrote"
    )


def read_nsys(file: BinaryIO, compressed: bool, progress: Progress) -> Trace:
    """Read an SQLite export, as every `Reader` does."""
    log = WarningLog()
    with on_disk(file, compressed, log, progress) as path, Database(path) as database:
        if not database.columns.keys() & ACTIVITIES.keys() or "StringTable" in database.columns:
            is_export = bool(database.columns.keys() & {*_OF_NSIGHT})
            raise IngestError(_without_events(database) if is_export else _other_database(database.columns))
        for (note,) in database.cells("DIAGNOSTIC_EVENT", "text"):
            log_note(log, str(note))
        parts = _parts(database, log)
        if not len(parts.events["start_ns"]):
            raise IngestError(_without_events(database))
    parts.warnings = log.rows()
    return build(parts)


def _parts(database: Database, log: WarningLog) -> Parts:
    recording = NsysRecording(database)
    found = [read(recording, table) for table, read in ACTIVITIES.items()]
    log("unnamed_work", "a kernel or call has no name in the file: its kind is unknown", recording.unnamed)
    message = "pages of managed memory moved: the time of kernels may include waits for pages"
    log("moved_pages", message, recording.migrations)
    recording.names.report(log)
    names = Activities._fields[:-1]  # all but the arguments
    columns = {name: np.concatenate([getattr(part, name) for part in found]) for name in names}
    far = np.abs(columns["start_ns"].astype(float)) > LATEST_NS
    log("far_time", "an event begins centuries from the others; its time is cut", int(far.sum()))
    columns["start_ns"] = np.clip(columns["start_ns"], -LATEST_NS, LATEST_NS)
    length = np.clip(columns.pop("end_ns"), -LATEST_NS, LATEST_NS) - columns["start_ns"]
    wrong = (length < 0) | (length > LONGEST_NS)
    log("long_duration", "an event has no end, or one before its start; its duration is 0", int(wrong.sum()))
    name = columns.pop("name")
    events: dict[str, Any] = {
        **columns,
        "duration_ns": np.where(wrong, 0, length),
        "name": Text(name, list(recording.names)),
        "category": Text(columns["category"].astype(np.int8), CATEGORIES),
        "source": np.arange(len(name)),
    }
    framework = "pytorch" if recording.uses_torch else ""
    # Times are since the session began: on one clock, files of several ranks can be compared.
    begun = database.integers("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")["utcEpochNs"]
    base = {"baseTimeNanoseconds": int(begun[0])} if len(begun) else {}
    return Parts(
        events=events,
        tracks=recording.tracks.columns(),
        arguments=_arguments(found, database.size, log),
        metadata=Metadata(framework=framework, devices=tuple(_devices(database)), properties=base),
    )


def _arguments(found: list[Activities], size: int, log: WarningLog) -> Arguments:
    """Of each activity; only the first where many repeat long ones."""
    blocks: list[ArgumentBlock] = []
    first, left = 0, most_expanded(size) // 4
    for part in found:
        ends = np.cumsum([0, *map(len, part.arguments)])
        kept = int(np.searchsorted(ends, left, side="right")) - 1
        blocks += ArgumentBlock.written(np.arange(first, first + kept), part.arguments[:kept])
        first, left = first + len(part.arguments), left - int(ends[kept])
        log("long_arguments", "events repeat long arguments; read a part", len(part.arguments) - kept)
    return Arguments(tuple(blocks))


def _devices(database: Database) -> Iterator[dict[str, Any]]:
    known = [name for name in ("name", *_FACTS) if name in database.columns.get("TARGET_INFO_GPU", ())]
    for number, *facts in database.cells("TARGET_INFO_GPU", "id", *known):
        yield {
            "id": number,
            **{_FACTS.get(name, name): fact for name, fact in zip(known, facts, strict=True)},
        }


# -- a report of Nsight Systems (`.nsys-rep`), exported by the `nsys` that is installed

_SUFFIXES = (".nsys-rep", ".qdrep")  # the second until version 2021.3
_TIMEOUT_S = 900  # exporting takes about as long as the recording did, and minutes for long ones
_COMMAND = "`nsys export --type sqlite FILE`"


def is_report(path: Path) -> bool:
    """Whether a file is a report by its name; the format itself is not documented."""
    return path.suffix in _SUFFIXES


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """The report as an SQLite database, in a folder that goes with it; IngestError without an `nsys`."""
    report, nsys = os.path.realpath(path, strict=True), shutil.which("nsys")
    if nsys is None:
        raise IngestError(
            f"only nsys can read its reports: where it is installed, run {_COMMAND}, and open that"
        )
    with TemporaryDirectory(prefix="stepscope-nsys-") as folder:
        database = Path(folder) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(database), report]
        try:
            subprocess.run(command, cwd=folder, timeout=_TIMEOUT_S, capture_output=True, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise IngestError(f"{_reason(error)}; see what {_COMMAND} says") from error
        if not database.exists():
            raise IngestError(f"nsys exported nothing; see what {_COMMAND} says")
        yield database


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nsys export timed out after {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or error.stdout or b"").decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it says nothing")
        return f"nsys export failed with exit code {error.returncode}: {last[:200]}"
    return f"nsys cannot be run: {error}"
