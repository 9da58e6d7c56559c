"""Readers of what else a capture holds: `memory.json`, `compiled.json`, `samples.json`."""

import zipfile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from stepscope.base.arrays import Ids32, Times
from stepscope.base.typed_data import decode
from stepscope.read.shared import checked, codes_of
from stepscope.trace.concat import stacked
from stepscope.trace.memory_schema import STORAGES, TENSOR_USES
from stepscope.trace.row_order import places_among
from stepscope.trace.schema import INSTANTS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace, clock_of

_VERSION = 1
_MISSING = "a use refers to a text"


class KeptStorage(Struct):
    """One piece of memory that training keeps."""

    address: int
    bytes: int
    device: str
    kind: str
    path: str = ""
    name: str = ""
    lines: list[tuple[str, int]] = []


class KeptStorages(Struct):
    """What it kept before and after the recorded steps."""

    before: list[KeptStorage] = []
    after: list[KeptStorage] = []


class Uses(Struct):
    """Columns of one length; `shape` and `dtype` are positions in the lists."""

    time_ns: list[int] = []
    address: list[int] = []
    shape: list[int] = []
    dtype: list[int] = []
    shapes: list[list[int]] = []
    dtypes: list[str] = []


class OutOfMemoryJson(Struct):
    """The allocation that failed."""

    device: str
    requested_bytes: int | None = None
    file: str = ""
    line: int = 0
    module: str = ""


class MemoryJson(Struct):
    """The form of memory.json; other keys are allowed."""

    format: Literal["stepscope memory"]
    version: int
    storages: KeptStorages = msgspec.field(default_factory=KeptStorages)
    uses: Uses = msgspec.field(default_factory=Uses)
    out_of_memory: OutOfMemoryJson | None = None


def with_memory(trace: Trace, text: bytes) -> Trace:
    """The trace of a capture with the tables `storages` and `tensor_uses` of its memory.json.

    Raises IngestError if that has another form than docs/reference/capture_format.md describes.
    """
    with checked("memory.json"):
        memory = decode(text, MemoryJson)
        _check(memory)
        trace = trace.with_table(_storages(memory.storages)).with_table(_uses(memory.uses, trace))
    if memory.out_of_memory is None:
        return trace
    failed: dict[str, Any] = msgspec.to_builtins(memory.out_of_memory)
    return trace.with_metadata(properties={**trace.metadata.properties, "out_of_memory": failed})


def kept_storages(capture: Path) -> list[KeptStorage]:
    """What training kept after the recorded steps of a capture, with all lines that led to it."""
    with zipfile.ZipFile(capture) as archive:
        return decode(archive.read("memory.json"), MemoryJson).storages.after


def _check(memory: MemoryJson) -> None:
    if memory.version > _VERSION:
        raise ValueError(f"version {memory.version}; this stepscope reads versions up to {_VERSION}")
    uses = memory.uses
    if len({len(uses.time_ns), len(uses.address), len(uses.shape), len(uses.dtype)}) != 1:
        raise ValueError("columns of `uses` differ in length")


def _storages(kept: KeptStorages) -> Table:
    rows = [("before", row) for row in kept.before] + [("after", row) for row in kept.after]
    places = [row.lines[-1] if row.lines else ("", -1) for _, row in rows]
    names = ("address", "bytes", "device", "kind", "path", "name")
    columns: dict[str, Any] = {
        "moment": [moment for moment, _ in rows],
        "file": [file for file, _ in places],
        "line": np.array([line for _, line in places], np.int64),
        **{name: [getattr(row, name) for _, row in rows] for name in names},
    }
    return Table(STORAGES, columns)


def _uses(uses: Uses, trace: Trace) -> Table:
    time = np.array(uses.time_ns, np.int64) - clock_of(trace.metadata)
    order = np.argsort(time, kind="stable")
    shapes = [",".join(map(str, shape)) for shape in uses.shapes]
    columns: dict[str, Any] = {
        "event": _begun_at(trace, time)[order],
        "time_ns": time[order],
        "address": np.array(uses.address, np.int64)[order],
        "shape": Text(codes_of(uses.shape, shapes, _MISSING)[order], shapes),
        "dtype": Text(codes_of(uses.dtype, uses.dtypes, _MISSING)[order], uses.dtypes),
    }
    return Table(TENSOR_USES, columns)


def _begun_at(trace: Trace, time: Times) -> Ids32:
    """The operator that begins at each time, -1 where none does."""
    operators = np.flatnonzero(trace.events.text("category").mask("cpu_op"))
    place = places_among(trace.events["start_ns"][operators], time)
    return np.append(operators, -1)[place].astype(np.int32)


Count = Annotated[int, Meta(ge=0, le=1 << 60)]


class TracedOperation(Struct):
    """A node of a graph as Dynamo traced it; `reads` are positions of inputs."""

    name: str
    target: str
    path: str | None
    elements: Count
    operations: Count
    reads: list[Count] = []


class InductorProgram(Struct):
    """The forward or backward program made from a graph: its key, and the code of its calls."""

    key: str | None
    backward: bool
    code: str


class InductorGraph(Struct):
    """A compiled graph."""

    region: str  # its number, as in the range `Torch-Compiled Region: 0/0`
    base: str | None  # the path of the module whose call was compiled
    inputs: list[str | None]  # the path of the module of each input that is a parameter, else null
    nodes: list[TracedOperation]
    programs: list[InductorProgram]


class Compiled(Struct):
    """The form of compiled.json."""

    graphs: list[InductorGraph]


def parse_compiled(text: bytes) -> dict[str, Any]:
    """The compiled graphs as plain data; raises IngestError if the text has another form."""
    with checked("compiled.json"):
        compiled = decode(text, Compiled)
        for graph in compiled.graphs:
            for node in graph.nodes:
                if max(node.reads, default=-1) >= len(graph.inputs):
                    raise ValueError(f"{node.name} reads input {max(node.reads)} of {len(graph.inputs)}")
        graphs: dict[str, Any] = msgspec.to_builtins(compiled)
    return graphs


# -- `samples.json`: which line the training loop's thread executed, as instants


CATEGORY, IN_LOOP = "sample", "sample in the loop"  # of instants
CALLED = " ← "  # in their names, between a line and the one that calls it
_MOST_CALLERS = 32  # twice as many as captures have
NOT_SAMPLED = "not_sampled"  # property of a trace


class SampledFrame(Struct):
    """A function and one of its lines."""

    function: str
    file: str
    line: Count
    called: Count | None = None  # position of the line that calls it


class SamplerMark(Struct):
    """A range that the sampled thread made, by its name in the trace, and when."""

    name: str
    unix_ns: Annotated[int, Meta(ge=0, le=1 << 62)]


class Samples(Struct):
    """The form of samples.json."""

    thread: int = 0  # the sampled thread, as the system numbers it
    since_unix_ns: Annotated[int, Meta(ge=0, le=1 << 62)] = 0  # when the first sample was taken
    after_ns: list[Count] = []  # the time of each sample after the first
    place: list[Count] = []  # position in `places` of each sample
    places: list[SampledFrame] = []
    # Relates the thread and its clock to the trace; None where both have Unix times and thread numbers.
    mark: SamplerMark | None = None
    loop: list[Count] = []  # positions in `places` of lines of the training loop, and of what calls it
    lacks: str = ""  # why nothing was sampled
    awaited: float = 0.0  # share of the time in which the event loop waited
    others: list[SampledFrame] = []  # where other threads executed the program when sampling ended


def with_samples(trace: Trace, text: bytes) -> Trace:
    """The trace with an instant for each sample, named `FUNCTION (FILE:LINE)` and after `CALLED` the
    lines that call it, inner ones first.

    Where nothing was sampled, its property `not_sampled` says why. Raises IngestError if the text has
    another form.
    """
    with checked("samples.json"):
        samples = decode(text, Samples)
        if len(samples.after_ns) != len(samples.place):
            raise ValueError("columns differ in length")
        called = [place.called for place in samples.places if place.called is not None]
        if max([*samples.place, *samples.loop, *called], default=-1) >= len(samples.places):
            raise ValueError("a place is not in the list")
        longest = max((len(place.function + place.file) for place in samples.places), default=0)
        if longest * len(samples.places) > 10_000_000:  # letters; chosen: 20,000 lines have fewer
            raise ValueError("its places have long names, or are too many")
    if samples.lacks:
        return trace.with_metadata(properties={**trace.metadata.properties, NOT_SAMPLED: samples.lacks})
    known = {"awaited": samples.awaited, "others": list(map(_named, samples.others))}
    trace = trace.with_metadata(capture={**trace.metadata.capture, **known})
    place = _place(trace, samples)
    return trace.with_table(_joined(trace, samples, *place)) if place else trace


def _place(trace: Trace, samples: Samples) -> tuple[int, int] | None:
    """The track of the sampled thread, and the time of the first sample in the trace, if known."""
    if samples.mark:
        marks = np.flatnonzero(trace.events.text("name").mask(samples.mark.name))
        track, time = (trace.events[name][marks] for name in ("track", "start_ns"))
        since = samples.since_unix_ns - samples.mark.unix_ns
    else:
        track = np.flatnonzero(trace["tracks"].text("thread").mask(str(samples.thread)))
        time, since = np.zeros_like(track), samples.since_unix_ns - clock_of(trace.metadata)
    return (int(track[0]), int(time[0]) + since) if len(track) else None


def _joined(trace: Trace, recorded: Samples, track: int, since: int) -> Table:
    """The instants of the trace, and one for each sample from the time `since` on."""
    names = [_with_callers(recorded, place) for place in recorded.places]
    loop = set(recorded.loop)
    kinds = [IN_LOOP if place in loop else CATEGORY for place in recorded.place]
    count = len(recorded.place)
    samples: dict[str, Any] = {
        "time_ns": np.array(recorded.after_ns, np.int64) + since,
        "track": np.full(count, track),
        "source": np.full(count, -1),
        "name": [names[place] for place in recorded.place],
        "category": kinds,
        "phase": Text.constant("i", count),
    }
    return stacked([trace["instants"], Table(INSTANTS, samples)])


def _with_callers(recorded: Samples, place: SampledFrame) -> str:
    """The name of the samples of a place."""
    lines = [place]
    while (called := lines[-1].called) is not None and len(lines) < _MOST_CALLERS:
        lines.append(recorded.places[called])
    return CALLED.join(map(_named, lines))


def _named(line: SampledFrame) -> str:
    return f"{line.function} ({line.file}:{line.line})"
