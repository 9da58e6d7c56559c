"""What each kind of file is told to be, and what the user is told to do next."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from captures import write_capture

from stepscope.errors import IngestError
from stepscope.read import is_trace, read

EVENTS = b'[{"ph":"X","name":"mm","pid":1,"tid":1,"ts":1,"dur":2}]'
PERFETTO = b"\x0a\x14\x50\x01\x9a\x04\x02\x08\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
XSPACE = b"\x0a\x18\x08\x01\x12\x14/device:TPU:0 (fake)"


def zstd(data: bytes) -> bytes:
    """Compressed with zstd, with checksums and frames as its command writes them."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def sqlite_file() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (a)")
    content = connection.serialize()
    connection.close()
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b" \n", "found an empty file"),
        (gzip.compress(b""), "found an empty file"),
        (b"\x1f\x8b\x08\x00garbage garbage", "the compressed data are damaged"),
        (b"\x28\xb5\x2f\xfd123", "the compressed data are damaged"),
        (b"\xfd7zXZ\x00123", "this is xz data"),
        (b"BZh9123", "this is bzip2 data"),
        (gzip.compress(gzip.compress(EVENTS)), "this is gzip data inside gzip data"),
        (PERFETTO, "this is a protobuf message, and no trace of Perfetto: give the"),
        (gzip.compress(PERFETTO), "this is a protobuf message, and no trace of Perfetto"),
        (XSPACE, "the XLA profile holds no readable event"),
        (pickle.dumps([1]), "this is a pickle other than a memory snapshot of PyTorch: stepscope"),
        (sqlite_file(), "found an SQLite database without tables of Nsight Systems"),
        (b"\x7fELF\x02\x01\x01\x00", "found binary data that begins with b'\\x7fELF"),
        ("[1]".encode("utf-16"), "the file holds no readable trace event"),
        (b"step,time\n1,2\n", "found text that begins with 'step,time"),
        (b"<html>", "this is a web page: download the trace itself"),
        (b"hello", "found text that begins with 'hello'; export the recording as JSON"),
        (b"NVR\0\x28\0\0\0", "this is an Nsight Compute report: it has no times of events"),
        (b'==PROF== Connected to process 1\n"ID","Process ID"', "this is a table of Nsight"),
        (b"Time (%),Total Time (ns),Instances", "this is a summary of `nsys stats`: export"),
        (b'"Index","KernelName","gpu-id"', "this is a table of rocprof: record with rocprofv3"),
        (b"Function\tCPU Time\tModule\n", "this is a table of a sampling profiler"),
        (b"python 7 [001] 81.2:  25 cpu-clock:\n\t7f frame", "this is the output of `perf script`"),
        (b"PERFILE2\x68", "this is a recording of Linux perf: it has samples and no steps"),
        (b"<module> (a.py:1);train (a.py:7) 12\n", "this is a file of collapsed stacks: it"),
        (b"--------------------  ------------  ", "this is a printed table of torch.profiler"),
        (b"\xfb)\x03\xfa", "this is a file of statistics of cProfile"),
        (b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x1a\x0dbrain.Event:2", "this is an event file of"),
        (b"trace.json" + bytes(247) + b"ustar", "this is a tar archive: unpack it"),
        (b'{"$schema": "", "profiles": [], "shared": {}}', "this is a profile of speedscope: "),
        (b'{"version": "2.4", "entries": [], "pg_config": {}}', "PyTorch's flight recorder"),
        (b'{"elapsed_time_sec": 2.1, "files": {}}', "this is a profile of scalene"),
        (
            b"\n------ DeepSpeed Flops Profiler ------\nProfile Summary",
            "this is a summary of DeepSpeed: it has",
        ),
        (b"[2024-01-01 10:00:00,123] [INFO] [log", "this is a log, such as DeepSpeed's: it has"),
        (b'[{"children": [], "frame": {"name": "ROOT"}}]', "this is a profile for hatchet, such as"),
        (b"\x04\x22\x4d\x18\x40\x40\xc0\x49\x38\0\0\xfa\x04memray\0\r", "this is a recording of memray"),
        (bytes.fromhex("0a04080110020a0408031004"), "this is a profile of pprof, such as JAX's"),
        (b"\n=== Device Timing Summary ===\n", "this is a summary of Intel's unitrace: record with"),
        (b'"Domain","Function","Process_Id"', "this is a table of rocprof: record with rocprofv3"),
        (b'"Sample_Timestamp","Exec_Mask","Dispatch_Id"', "this is a table of rocprof: record"),
        (b"version: 1\ncreator: yappi\npid: 1\n", "this is a profile of callgrind: it has no times"),
        (b"\n  _     ._   __/__   _ _  _\n", "this is a printed profile of pyinstrument: it has"),
        (b" 1\n<module> (w.py:7);work (w.py:4) 132\n", "this is a file of collapsed stacks: it"),
        (b'{"sample_count": 1, "frame_records": []}', "this is a session of pyinstrument: it has"),
        (b"memray\0\x0b\0\0", "this is a recording of memray: record memory with"),
        (b'{"schema": "1.0", "nodes": []}', "this is a PyTorch execution trace"),
        (b"\x07\x0a\x050.0.4\x12\x08\x01", "this is an execution trace of Chakra: it has operators"),
    ],
    ids=lambda part: part if isinstance(part, str) else len(part),
)
def test_foreign_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(IngestError, match=re.escape(message)) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_script_where_a_trace_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    with pytest.raises(IngestError, match="this is a Python script: record it with `stepscope"):
        read(path)


@pytest.mark.parametrize("content", [EVENTS, b"\xef\xbb\xbf \n" + EVENTS, gzip.compress(EVENTS)], ids=len)
def test_the_name_does_not_matter(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.pb"
    path.write_bytes(content)
    trace = read(path)
    assert len(trace.events) == 1
    assert (trace.metadata.format, trace.metadata.source) == ("trace events", str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="no such file or folder"):
        read(tmp_path / "nope.json")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> io.BytesIO:
        raise PermissionError(13, os.strerror(13))  # root, who runs CI, may read anything

    (tmp_path / "trace.json").write_text("[]")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(IngestError, match="permission denied"):
        read(tmp_path / "trace.json")


def test_is_trace_looks_at_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(EVENTS)
    (tmp_path / "b.json").write_bytes(b"\x80\x04")
    write_capture(tmp_path / "c")
    assert [is_trace(tmp_path / name) for name in ("a.txt", "b.json", "c", "d")] == [True, False, True, False]


@pytest.mark.main
def test_a_real_file_that_is_no_trace(traces: Path) -> None:
    with pytest.raises(IngestError, match="a PyTorch execution trace"):
        read(traces / "resnet_2080ti_with_et/execution_trace.json.gz")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_other_encodings_and_compressions(
    encoding: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    event = {"ph": "X", "name": "größe", "dur": 2, "pid": 1, "tid": 1}
    events = [{**event, "ts": 3 * number} for number in range(5000)]
    text = json.dumps({"traceEvents": events}, ensure_ascii=False)
    path = tmp_path / "trace"
    path.write_bytes(pack(text.encode(encoding)))
    done: list[int] = []
    trace = read(path, done.append)
    assert set(trace.events.text("name")) == {"größe"}
    assert (len(trace.events), len(trace["warnings"])) == (5000, 0)
    assert sum(done) == path.stat().st_size


@pytest.mark.main
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_zstd_that_is_cut_short_gives_what_it_holds(share: float, tmp_path: Path) -> None:
    rng = random.Random(1)
    events = [
        {"ph": "X", "name": f"{rng.random()}", "ts": n, "dur": 1, "pid": 1, "tid": 1} for n in range(20_000)
    ]
    data = zstd(json.dumps(events).encode())
    path = tmp_path / "trace"
    path.write_bytes(data[: int(len(data) * share)])
    trace = read(path)
    assert 0 < len(trace.events) < 20_000
    codes = {row["code"] for row in trace["warnings"].rows()}
    assert codes <= {"damaged_zstd", "truncated_event"}
    assert "damaged_zstd" in codes
