"""Tracks of an XLA profile: one for each thread of the host and for each line of a device.

A TPU has a plane for its TensorCore and one for each SparseCore; one line of each has the work, the others
summarize it, count, or synchronize. Traces of what the runtime or a kernel does inside are planes of their
own, which hold no work of a device: actions of a transfer between slices (Megascale), and Mosaic kernels.

Source: xplane_schema.cc for the names of planes and lines; xprof's xspace_loader.cc for Megascale.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Integers
from stepscope.base.kernel_names import COPY_OF_ROCM
from stepscope.read.shared import EventNames, WarningLog
from stepscope.read.xplane.xevents import Batch
from stepscope.read.xplane.xspace import EventKind, Plane, PlaneLine
from stepscope.trace.frame_name import FrameName
from stepscope.trace.row_order import rows_by_key, running_span
from stepscope.trace.schema import CATEGORIES
from stepscope.trace.sets import Interner, distinct_rows

HOST, WORK, SUMMARY, STEPS = range(4)
_DEVICE = re.compile(r"^/device:(?P<what>.*?):?(?P<index>\d{1,6})?(?: .*)?$")
_STREAM = re.compile(r"^Stream #(\d{1,9})")
_NUMBERED = re.compile(r"/(?=-?\d+$)")
_UNNAMED = "Host Threads"
_OPERATIONS = ("XLA Ops", "Async XLA Ops", "Sparse Core Ops")
_INSIDE_WORK = re.compile(r"^/device:CUSTOM:(Megascale|MOSAIC)")
_STEPS = "Steps"
_SUMMARIES = (
    *(_STEPS, "XLA Modules", "Framework Name Scope", "Framework Ops", "Source code", "Launch Stats"),
    *("XLA TraceMe", "_counters_", "Sparse Core Steps", "Sparse Core Modules", "Sparse Core Syncs"),
    "Tensor Core Sync Flag",
)
_DERIVED = re.compile(r"^Host Offload Ops")  # XProf draws copies of operations there, on rows
# Ids of runs on the host are hashes that may be negative; no id of a device is as large as this.
_OPERATOR = CATEGORIES.index("cpu_op")
_HOST_RUN, _RUN_BITS = 1 << 40, (1 << 32) - 1
_NAME_STATS = ("gpu_device_name", "device_type_string", "device_type")


class PlaneTrack(NamedTuple):
    """A track's number and role: HOST thread, device WORK, SUMMARY of other lines, or STEPS."""

    number: int
    role: int


class PlaneTracks:
    """The tracks of a file, numbered in order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int, str], int] = {}
        self._rows: list[dict[str, Any]] = []

    def of(self, plane: Plane) -> list[PlaneTrack]:
        """The track of each line of a plane."""
        device = _DEVICE.match(plane.name)
        if device is None:
            return [self._host(plane, line) for line in plane.lines]
        if _INSIDE_WORK.match(plane.name):  # its number is none of a device
            return [self._device(plane, line, 0, works=False) for line in plane.lines]
        index = int(device["index"] or 0)
        working = _working(plane)
        return [self._device(plane, line, index, line.name in working) for line in plane.lines]

    def _host(self, plane: Plane, line: PlaneLine) -> PlaneTrack:
        """The track of a thread; lines with one number, in any of the host's planes, share it."""
        key = ("host", line.id, "" if line.id else f"{plane.name} {line.name}")
        name = _NUMBERED.sub(" ", line.name)  # separates the thread's number from its name
        if key not in self._numbers:
            self._append(key, HOST, kind="cpu", name=name, process="host", device=-1, stream=-1)
        row = self._rows[self._numbers[key]]
        if not row["name"] or row["name"].startswith(_UNNAMED):
            row["name"] = name
        return PlaneTrack(self._numbers[key], HOST)

    def _device(self, plane: Plane, line: PlaneLine, index: int, works: bool) -> PlaneTrack:
        key = (plane.name, line.id, line.name)
        role = WORK if works else STEPS if line.name == _STEPS else SUMMARY
        if key not in self._numbers:
            found = _STREAM.match(line.name)
            number = int(found[1]) if found else line.id if 0 <= line.id < 2**31 else -1
            stream = number if works else -1
            self._append(
                key, role, kind="device", name=line.name, process=plane.name, device=index, stream=stream
            )
        return PlaneTrack(self._numbers[key], role)

    def _append(self, key: tuple[str, int, str], role: int, **row: Any) -> None:
        self._numbers[key] = len(self._rows)
        self._rows.append({**row, "role": role, "thread": str(key[1])})

    def columns(self) -> dict[str, Any]:
        """Columns of the tracks table."""
        names = ("kind", "name", "process", "thread", "device", "stream")
        columns = {name: [row[name] for row in self._rows] for name in names}
        return {**columns, "name": [row["name"] or f"thread {row['thread']}" for row in self._rows]}

    def correlations(self, columns: Mapping[str, Integers], run: Integers) -> Integers:
        """The number that links launches to device work: the runtime's, else the program run's.

        A TPU's operations have no correlation id; their program and the call that started it share
        the id of the run. So do programs that run on the host's threads.
        """
        roles = np.array([row["role"] for row in self._rows] or [0])[columns["track"]]
        planes: Interner[str] = Interner()
        plane = planes.codes(row["process"] for row in self._rows)[columns["track"]]
        result, lacks_numbers = columns["correlation"].copy(), False
        for rows in rows_by_key(plane).values():
            work = rows[roles[rows] == WORK]
            if not len(work) or (columns["correlation"][work] >= 0).any():
                continue
            runs = rows[(roles[rows] == SUMMARY) & (run[rows] >= 0)]
            result[work] = _run_around(columns, run, work, runs)
            lacks_numbers = True
        calls = (roles == HOST) & (result < 0) & lacks_numbers
        result[calls] = run[calls]
        host = (roles == HOST) & (result < 0) & (run != -1)
        here = host & np.isin(run, run[host & (columns["category"] == _OPERATOR)])
        result[here] = _HOST_RUN | (run[here] & _RUN_BITS)
        return result

    def devices(self, planes: Sequence[Plane]) -> list[dict[str, Any]]:
        """Each device's number, name and recorded properties; of its own plane, not of a part's."""
        devices: dict[int, dict[str, Any]] = {}
        for plane in sorted(planes, key=lambda plane: len(plane.name.split())):
            found = _DEVICE.match(plane.name)
            if found and plane.lines and not _INSIDE_WORK.match(plane.name):
                index = int(found["index"] or 0)
                known = {key: value for key, value in plane.stats.items() if not isinstance(value, tuple)}
                devices.setdefault(index, {**known, "id": index, "name": _name(found["what"], known)})
        return list(devices.values())


def _run_around(columns: Mapping[str, Integers], run: Integers, work: Integers, runs: Integers) -> Integers:
    """The run in which each piece of work starts, -1 if none."""
    runs = runs[np.argsort(columns["start_ns"][runs], kind="stable")]
    start = columns["start_ns"][runs]
    around = running_span(start, start + columns["duration_ns"][runs], columns["start_ns"][work])
    return np.append(run[runs], -1)[around]


def _working(plane: Plane) -> set[str]:
    """The lines with the device's work; other lines summarize it by step, module or scope."""
    names = {line.name for line in plane.lines}
    return (
        {name for name in names if _STREAM.match(name)}
        or names.intersection(_OPERATIONS)
        or {name for name in names.difference(_SUMMARIES) if not _DERIVED.match(name)}
    )


def _name(what: str, stats: Mapping[str, Any]) -> str:
    recorded = next((str(stats[key]) for key in _NAME_STATS if stats.get(key)), "")
    return recorded or " ".join(filter(None, (str(stats.get("device_vendor") or ""), what)))


_CODE = {name: code for code, name in enumerate(CATEGORIES)}
_CALL, _COMPILED, _COPIES = 1, 2, 3
_DIGITS = 18  # of a step's number, the last ones: more do not fit 64 bits
_API = re.compile(r"^(cu|cuda|hip|hsa_?)[A-Z]")
_RUNTIME = re.compile(
    r"::|^end: |^(Pjit|Py|pjit)\w*\(|^(ParseArguments|BlockHostUntilReady|"
    r"(?=\w*?(Executable|Executor|Thunk|Transfer\w*Device))\w*( \(.*\))?)$"
)
_WAIT = re.compile(r" \(wait for completion\)$")
_OUR_WAIT = "stepscope.wait: "  # of the program for a result, which our recorder marks
_PYTHON = re.compile(r"^\$(?:(.+\.py):(\d{1,9}) )?(.*)$", re.DOTALL)
_CONTROL = re.compile(r"^(while|conditional|call)(\.\d+)*$")
_NEXT_BATCH = "IteratorGetNextOp::DoCompute"  # TensorFlow's operation that waits for tf.data
# A TPU's copies are named by the compiler; of an asynchronous slice the device moves data too.
_COPY = re.compile(
    f"{COPY_OF_ROCM}|" r"^Memcpy|^async-copy\b|^(copy|(dynamic-)?(update-)?slice)-(start|done)(\.\d+)*$"
)
_FEED = re.compile(r"^(in|out)feed\b")  # the device waits until the host gives a batch, or takes results
_COPY_CATEGORIES = ("copy-start", "copy-done")  # of an operation in XLA's program


class Naming:
    """Names and categories of events; adds the names to `names`."""

    def __init__(self, names: EventNames, log: WarningLog) -> None:
        self._names, self._log = names, log

    def of(
        self, plane: Plane, batch: Batch, tracks: list[PlaneTrack], columns: Mapping[str, Integers]
    ) -> tuple[Integers, Integers]:
        """Codes of name and of category, computed once per distinct combination."""
        role = np.array([track.role for track in tracks])[batch.line]
        claim, step = _claims(batch, columns), batch.integers("step_num")
        keys, inverse = distinct_rows(batch.kind, role, claim, step)
        table = np.array([self._codes(plane, *key) for key in keys], np.int64).reshape(-1, 2)[inverse]
        return table[:, 0], table[:, 1]

    def _codes(self, plane: Plane, kind: int, role: int, claim: int, step: int) -> tuple[int, int]:
        known = plane.kinds.get(kind)
        name = self._recorded_name(known, kind)
        if role == STEPS and name.isascii() and name.isdigit():
            name, step = "step", int(name[-_DIGITS:])
        if step >= 0:
            return self._names[f"{name}#step_num={step}"], _CODE["annotation"]
        if role == HOST and (found := _PYTHON.match(name)):
            file, line, function = found.groups()
            written = str(FrameName(file, int(line), function)) if file else function
            return self._names[written], _CODE["python"]
        if name.startswith(_OUR_WAIT):
            return self._names[name.removeprefix("stepscope.")], _CODE["runtime"]
        if role == HOST and known and (known.operation or known.name == _NEXT_BATCH):
            return self._names[name], _CODE["cpu_op"]
        return self._names[name], _CODE[_category(name, role, claim)]

    def _recorded_name(self, known: EventKind | None, kind: int) -> str:
        if known is None:
            self._log("unnamed_event", "the name of an event is missing; shown by its number")
            return f"event {kind}"
        return self._names.shown(known.display_name or known.name)


def _claims(batch: Batch, columns: Mapping[str, Integers]) -> Integers:
    """The role of each event that follows from its ids: a call, compiled work, a copy, or 0."""
    has_id = [columns["correlation"] >= 0, batch.texts("hlo_op") >= 0, columns["run"] >= 0]
    copies = batch.has_text("hlo_category", *_COPY_CATEGORIES)
    return np.select([copies, *has_id], [_COPIES, _CALL, _COMPILED, _CALL], 0)


def _category(name: str, role: int, claim: int) -> str:
    if role == HOST:
        if claim in (_COMPILED, _COPIES) and not _API.match(name):
            return "cpu_op"
        if _WAIT.search(name):
            return "sync"
        return "runtime" if claim or _API.match(name) or _RUNTIME.search(name) else "annotation"
    if role != WORK or _CONTROL.match(name):
        return "annotation"
    if claim == _COPIES or _COPY.match(name):
        return "memcpy"
    if _FEED.match(name):
        return "sync"
    return "memset" if name.startswith("Memset") else "kernel"
