"""What each kind of file is told to be, and what the user is told to do next."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import re
import sqlite3
from pathlib import Path

import pytest
from captures import write_capture

from stepscope.errors import IngestError
from stepscope.ingest import is_trace, read

EVENTS = b'[{"ph":"X","name":"mm","pid":1,"tid":1,"ts":1,"dur":2}]'
PERFETTO = (
    b"\x0a\x14\x50\x01\x9a\x04\x02\x08\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
)
XSPACE = b"\x0a\x18\x08\x01\x12\x14/device:TPU:0 (fake)"


def sqlite_file() -> bytes:
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (a)")
    content = connection.serialize()
    connection.close()
    return content


def snapshot() -> bytes:
    return pickle.dumps({"segments": [], "device_traces": []})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b" \n", "found an empty file"),
        (gzip.compress(b""), "found an empty file"),
        (b"\x1f\x8b\x08\x00garbage garbage", "expected gzip data as its first bytes promise"),
        (b"\x28\xb5\x2f\xfd123", "found zstd data; decompress it with `zstd -d`"),
        (b"\xfd7zXZ\x00123", "found xz data"),
        (b"BZh9123", "found bzip2 data"),
        (gzip.compress(gzip.compress(EVENTS)), "found gzip data inside gzip data"),
        (PERFETTO, "found a protobuf message, as Perfetto writes; convert it with"),
        (gzip.compress(PERFETTO), "found a protobuf message, as Perfetto writes"),
        (XSPACE, "expected an XLA profile with events, found none that could be read in"),
        (snapshot(), "found a PyTorch memory snapshot (a pickle); pickles are never loaded"),
        (pickle.dumps([1]), "found a pickle; pickles are never loaded"),
        (sqlite_file(), "found an SQLite database (Nsight Systems or rocprof)"),
        (b"\x7fELF\x02\x01\x01\x00", "found binary data that begins with b'\\x7fELF"),
        ("[1]".encode("utf-16"), "found UTF-16 text; convert it with `iconv"),
        (b"step,time\n1,2\n", "found text that begins with b'step,time"),
        (b"<html>", "found text that begins with b'<html>'; export the recording as JSON"),
        (b'{"schema": "1.0", "nodes": []}', "this is a PyTorch execution trace"),
    ],
    ids=lambda part: part if isinstance(part, str) else len(part),
)  # fmt: skip
def test_foreign_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(IngestError, match=re.escape(message)) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: expected ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content", [EVENTS, b"\xef\xbb\xbf \n" + EVENTS, gzip.compress(EVENTS)], ids=len
)
def test_the_name_does_not_matter(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.pb"
    path.write_bytes(content)
    trace = read(path)
    assert len(trace.events) == 1
    assert (trace.metadata.format, trace.metadata.source) == ("trace events", str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="expected a file or a folder, found nothing there"):
        read(tmp_path / "nope.json")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> io.BytesIO:
        raise PermissionError(13, os.strerror(13))  # root, who runs CI, may read anything

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(IngestError, match="without read permission"):
        read(tmp_path / "trace.json")


def test_is_trace_looks_at_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(EVENTS)
    (tmp_path / "b.json").write_bytes(b"\x80\x04")
    write_capture(tmp_path / "c")
    assert [is_trace(tmp_path / name) for name in ("a.txt", "b.json", "c", "d")] == [
        True, False, True, False,
    ]  # fmt: skip


def test_a_real_file_that_is_no_trace(traces: Path) -> None:
    with pytest.raises(IngestError, match="a PyTorch execution trace"):
        read(traces / "resnet_2080ti_with_et/execution_trace.json.gz")
