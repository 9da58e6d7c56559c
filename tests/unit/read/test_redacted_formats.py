"""None of the names that a user's program puts into a file of any format is left once it is redacted."""

from __future__ import annotations

import json
import pickle
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_nsys import export, process, thread
from test_perfetto import BEGIN, CUSTOM, END, INSTANT, PROCESS, THREAD, at, track
from xspaces import Operation, Slice, message, xspace

import stepscope
from stepscope.trace.declaration import Schema
from stepscope.trace.portable import to_bytes
from stepscope.trace.redact import Words, redacted
from stepscope.trace.schema import SCHEMAS
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata, Trace

NAMES, MS, USER = 1000, 1_000_000, thread(7, 7)
Plant = Callable[[], str]


def nsight(path: Path, plant: Plant) -> None:
    """Ranges, threads, and what the recorder knows of the machine."""
    times = [(row * MS, row * MS + MS // 2, 59) for row in range(350)]
    ranges = [(*when, f"{plant()} {plant()}", None, USER) for when in times]
    interned = [(*when, None, row, USER) for row, when in enumerate(times)]
    names = [(row, plant()) for row in range(350)]
    ids = ("deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName")
    host = ("Hostname", 1, plant())
    tables = {
        "StringIds": (("id", "value"), [*names, (900, "gemm")]),
        "NVTX_EVENTS": (("start", "end", "eventType", "text", "textId", "globalTid"), ranges + interned),
        "ThreadNames": (("nameId", "priority", "globalTid"), [(5, 0, USER)]),
        "TARGET_INFO_SYSTEM_ENV": (("name", "nameEnum", "value"), [host]),
        "DIAGNOSTIC_EVENT": (("timestamp", "severity", "text"), [(1, 2, f"{plant()} lost events")]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (("start", "end", *ids), [(1, 9, 0, 7, 1, process(7), 900, 900)]),
    }
    export(path, tables)


def snapshot(path: Path, plant: Plant) -> None:
    """Stacks of allocations."""

    def frames() -> list[dict[str, Any]]:
        return [{"filename": f"/home/{plant()}/{plant()}.py", "line": 3, "name": plant()} for _ in range(3)]

    history, blocks = [], []
    for row in range(115):
        place = {"addr": 4096 + row * 512, "size": 512, "stream": 0}
        history.append(
            {"action": "alloc", **place, "time_us": row, "frames": frames(), "user_metadata": plant()}
        )
        blocks.append(
            {"size": 512, "requested_size": 500, "state": "active_allocated", "address": place["addr"]}
        )
    segment = {"device": 0, "address": 4096, "total_size": 512 * len(blocks), "stream": 0, "blocks": blocks}
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}
    everything = {"segments": [segment], "device_traces": [history], "allocator_settings": settings}
    path.write_bytes(pickle.dumps(everything))


def xla(path: Path, plant: Plant) -> None:
    """Functions, scopes and files of JAX, and names of threads."""
    calls = [Slice(f"{plant()}.py:{row} {plant()}", row, 0.5, **{plant(): plant()}) for row in range(170)]
    kernels = [Slice("loop_fusion", row, 0.5, hlo_op="fusion.1", hlo_module="jit_step") for row in range(9)]
    scopes = [f"jit({plant()})/jvp({plant()})/{plant()}/dot_general" for _ in range(100)]
    program = {
        f"fusion.{row}": Operation("fusion", scope, f"/home/{plant()}/{plant()}.py", row + 1)
        for row, scope in enumerate(scopes)
    }
    planes = {"/host:CPU": {plant(): calls}, "/device:GPU:0": {"Stream #7(Compute)": kernels}}
    path.write_bytes(xspace(planes, programs={"jit_step": program}))


def perfetto(path: Path, plant: Plant) -> None:
    """Slices, instants, counters, tracks and annotations."""
    name, category = 23, 22
    parts = [
        track(PROCESS, (3, message((1, 4), (6, f"/home/{plant()}/{plant()}.py")))),
        track(THREAD, (5, PROCESS), (4, message((1, 4), (2, 9), (5, plant())))),
        track(CUSTOM, (5, PROCESS), (2, plant())),
    ]
    for row in range(180):
        note = (4, message((10, plant()), (6, f"{plant()}: {plant()}")))
        parts += [
            at(row * 1000, BEGIN, (name, plant()), (category, plant()), note),
            at(row * 1000 + 500, END),
        ]
        parts.append(at(row * 1000 + 600, INSTANT, (name, plant()), track=CUSTOM))
    path.write_bytes(b"".join(parts))


def kineto(path: Path, plant: Plant) -> None:
    """Ranges of the user on the device, counters, instants, names of processes and of the file."""
    stream = {"ph": "X", "pid": 0, "tid": 7, "dur": 2}
    events: list[dict[str, Any]] = [
        {"cat": "kernel", "name": "gemm", "ts": 1, **stream, "args": {"stream": 7}}
    ]
    for row in range(200):
        here = {"pid": 1, "tid": 1, "ts": row * 10.0}
        noted = {"ts": row * 10.0, "args": {"stream": 7, plant(): plant()}}
        events.append({"cat": "gpu_user_annotation", "name": plant(), **stream, **noted})
        events.append({"ph": "i", "cat": plant(), "name": plant(), "s": "t", **here})
        events.append({"ph": "C", "name": plant(), "args": {plant(): row}, **here})
    labels = {"ph": "M", "pid": 1, "tid": 1, "ts": 0}
    for name in ("process_name", "thread_name"):
        events.append({"name": name, "args": {"name": plant()}, **labels})
    texts = {"traceName": f"/home/{plant()}.json", plant(): plant()}
    path.write_text(json.dumps({**texts, "traceEvents": events}))


class Planted:
    """Gives names that no file of anyone has."""

    def __init__(self) -> None:
        self._chance = random.Random(5)
        self.names: list[str] = []

    def __call__(self) -> str:
        self.names.append("".join(self._chance.choices(string.ascii_lowercase, k=10)))
        return self.names[-1]

    def left(self, data: bytes) -> int:
        """How many of the names are in some bytes."""
        return sum(name.encode() in data for name in self.names)


@pytest.mark.parametrize("write", [nsight, snapshot, xla, perfetto, kineto])
def test_no_name_of_a_file_is_left(write: Callable[[Path, Plant], None], tmp_path: Path) -> None:
    plant, path = Planted(), tmp_path / "recording"
    write(path, plant)
    assert plant.left(path.read_bytes()) == len(plant.names) >= NAMES
    trace = stepscope.open(path)
    assert plant.left(to_bytes(trace)) > NAMES / 4
    assert plant.left(to_bytes(redacted(trace, Words(b"a key")))) == 0


def test_no_name_is_left_in_any_column_or_property() -> None:
    plant = Planted()
    tables = {name: Table(schema, _planted(schema, plant)) for name, schema in SCHEMAS.items()}
    texts = {plant(): [plant(), {plant(): plant()}] for _ in range(100)}
    facts = dict.fromkeys(("capture", "model", "properties", "recording_cost"), texts)
    trace = Trace(tables, Metadata(source=plant(), devices=({"uuid": plant(), plant(): plant()},), **facts))
    assert plant.left(to_bytes(trace)) == len(plant.names) >= NAMES
    assert plant.left(to_bytes(redacted(trace, Words(b"a key")))) == 0


def _planted(schema: Schema, plant: Plant) -> dict[str, Any]:
    """Rows whose free texts are names; names of device work, which are kept, are not among them."""
    free = [column for column in schema.columns if column.kind == "text" and not column.values]
    columns: dict[str, Any] = {column.name: [plant() for _ in range(20)] for column in free}
    kinds = {"category": ["annotation"] * 20, "kind": ["python", "instruction"] * 10}
    given = {"events": ("category",), "contexts": ("kind",)}.get(schema.name, ())
    return columns | {name: kinds[name] for name in given}
