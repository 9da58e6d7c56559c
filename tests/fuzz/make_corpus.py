"""Writes the seeds of the corpus: `python tests/fuzz/make_corpus.py`; inputs that failed stay."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "ingest"))

CORPUS = Path(__file__).parent / "corpus"
TRAIN = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": n * 100, "dur": 99,
     "pid": 1, "tid": 1}
    for n in range(3)
]  # fmt: skip
WORK = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5, "dur": 20, "pid": 1, "tid": 1,
     "args": {"Sequence number": 7, "Input Dims": [[2, 3], [3, 4]]}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 6, "dur": 3, "pid": 1,
     "tid": 1, "args": {"correlation": 9}},
    {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": 30, "dur": 8.5, "pid": 0, "tid": 7,
     "args": {"correlation": 9, "stream": 7, "device": 0}},
    {"ph": "X", "cat": "cpu_op", "name": "MmBackward0", "ts": 50, "dur": 9, "pid": 1, "tid": 2,
     "args": {"Sequence number": 7, "Fwd thread id": 1}},
    {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "ts": 4, "dur": 22,
     "pid": 1, "tid": 1},
    {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "ts": 6, "pid": 1, "tid": 1},
    {"ph": "f", "id": 9, "cat": "ac2g", "name": "ac2g", "ts": 30, "pid": 0, "tid": 7},
    {"ph": "i", "name": "[memory]", "ts": 7, "pid": 1, "tid": 1,
     "args": {"Bytes": 512, "Addr": 77, "Device Type": 1, "Device Id": 0}},
    {"ph": "C", "name": "c", "ts": 8, "pid": 1, "tid": 1, "args": {"v": 1}},
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "python"}},
]  # fmt: skip
PAIRS = [
    {"ph": "B", "name": "a", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "B", "name": "b", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "E", "ts": 3, "pid": 1, "tid": 1},
    {"ph": "E", "name": "a", "ts": 4, "pid": 1, "tid": 1},
    {"ph": "b", "cat": "x", "id": 1, "name": "c", "ts": 2, "pid": 1, "tid": 1},
    {"ph": "e", "cat": "x", "id": 1, "name": "c", "ts": 5, "pid": 1, "tid": 1},
]
MODEL = {"name": "m", "class": "Net", "line": 3, "parameters": 12,
         "children": [{"name": "fc", "class": "Linear", "children": []}]}  # fmt: skip
MANIFEST = {
    "format": "stepscope capture", "version": 1, "framework": "pytorch", "outcome": "complete",
    "message": "", "rank": 0, "world_size": 2, "devices": [{"name": "GPU"}], "warnings": ["w"],
    "loaders": [{"workers": 2}], "steps_recorded": [1, 2],
}  # fmt: skip
CONTEXTS = {
    "format": "stepscope contexts", "version": 1,
    "strings": ["", "main", "step", "aten::mm", "sgemm", "kernel", "a.py"],
    "kinds": ["root", "thread", "python", "operator", "kernel"],
    "nodes": {"parent": [-1, 0, 1, 2, 3], "kind": [0, 1, 2, 3, 4], "name": [0, 1, 2, 3, 4],
              "relation": [0, 0, 0, 0, 0], "file": [0, 0, 6, 0, 0], "line": [0, 0, 12, 0, 0],
              "class": [0, 0, 0, 0, 5]},
    "metrics": {"device_ns": {"node": [4], "count": [3], "sum": [30.0], "min": [5.0],
                              "max": [20.0], "squares": [500.0], "nesting": "exclusive",
                              "unit": "ns", "meaning": "a kernel"}},
}  # fmt: skip


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def main() -> None:
    """Write one file per seed, in a folder per target."""
    from test_any_xplane import SAMPLE

    kineto = json.dumps({"schemaVersion": 1, "traceEvents": TRAIN + WORK, "end": 1}).encode()
    seeds = {
        "file/kineto.json": kineto,
        "file/array.json": json.dumps(TRAIN + PAIRS).encode(),
        "file/kineto.json.gz": gzip.compress(kineto, mtime=0),
        "file/kineto.json.zst": _zstd(kineto),
        "file/utf16.json": kineto.decode().encode("utf-16"),
        "file/profile.xplane.pb": SAMPLE,
        "manifest/plain.json": json.dumps(MANIFEST).encode(),
        "model/plain.json": json.dumps(MODEL).encode(),
        "model/roots.json": json.dumps({"roots": [MODEL]}).encode(),
        "contexts/plain.json": json.dumps(CONTEXTS).encode(),
    }
    for name, data in seeds.items():
        (CORPUS / name).parent.mkdir(parents=True, exist_ok=True)
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
