"""Writes the seeds of the corpus: `python tests/fuzz/make_corpus.py`; inputs that failed stay."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "read"))

CORPUS = Path(__file__).parent / "corpus"
TRAIN = [
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{n}",
        "ts": n * 100,
        "dur": 99,
        "pid": 1,
        "tid": 1,
    }
    for n in range(3)
]
WORK = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "ts": 5,
        "dur": 20,
        "pid": 1,
        "tid": 1,
        "args": {"Sequence number": 7, "Input Dims": [[2, 3], [3, 4]]},
    },
    {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": 6,
        "dur": 3,
        "pid": 1,
        "tid": 1,
        "args": {"correlation": 9},
    },
    {
        "ph": "X",
        "cat": "kernel",
        "name": "sgemm",
        "ts": 30,
        "dur": 8.5,
        "pid": 0,
        "tid": 7,
        "args": {"correlation": 9, "stream": 7, "device": 0},
    },
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "MmBackward0",
        "ts": 50,
        "dur": 9,
        "pid": 1,
        "tid": 2,
        "args": {"Sequence number": 7, "Fwd thread id": 1},
    },
    {
        "ph": "X",
        "cat": "python_function",
        "name": "nn.Module: Linear_0",
        "ts": 4,
        "dur": 22,
        "pid": 1,
        "tid": 1,
    },
    {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "ts": 6, "pid": 1, "tid": 1},
    {"ph": "f", "id": 9, "cat": "ac2g", "name": "ac2g", "ts": 30, "pid": 0, "tid": 7},
    {
        "ph": "i",
        "name": "[memory]",
        "ts": 7,
        "pid": 1,
        "tid": 1,
        "args": {"Bytes": 512, "Addr": 77, "Device Type": 1, "Device Id": 0},
    },
    {"ph": "C", "name": "c", "ts": 8, "pid": 1, "tid": 1, "args": {"v": 1}},
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "python"}},
]
PAIRS = [
    {"ph": "B", "name": "a", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "B", "name": "b", "ts": 1, "pid": 1, "tid": 1},
    {"ph": "E", "ts": 3, "pid": 1, "tid": 1},
    {"ph": "E", "name": "a", "ts": 4, "pid": 1, "tid": 1},
    {"ph": "b", "cat": "x", "id": 1, "name": "c", "ts": 2, "pid": 1, "tid": 1},
    {"ph": "e", "cat": "x", "id": 1, "name": "c", "ts": 5, "pid": 1, "tid": 1},
]
PADDLE = [
    {
        "ph": "X",
        "cat": cat,
        "name": f"{name}[{dur}.0 us]",
        "ts": ts,
        "dur": dur,
        "pid": 7,
        "tid": f"7({side})",
    }
    for name, cat, ts, dur, side in (
        ("ProfileStep#3", "ProfileStep", 0, 100, "Python"),
        ("Linear", "Forward", 0, 50, "Python"),
        ("matmul dygraph", "Operator", 2, 46, "C++"),
        ("Global_MatmulGradNode", "Operator", 52, 26, "C++"),
        ("adam_ dygraph", "Operator", 82, 16, "C++"),
    )
]
MODEL = {
    "name": "m",
    "class": "Net",
    "line": 3,
    "parameters": 12,
    "children": [{"name": "fc", "class": "Linear", "children": []}],
}
MANIFEST = {
    "format": "stepscope capture",
    "version": 1,
    "framework": "pytorch",
    "outcome": "complete",
    "message": "",
    "rank": 0,
    "world_size": 2,
    "devices": [{"name": "GPU"}],
    "warnings": ["w"],
    "loaders": [{"workers": 2}],
    "steps_recorded": [1, 2],
}
CONTEXTS = {
    "format": "stepscope contexts",
    "version": 1,
    "strings": ["", "main", "step", "aten::mm", "sgemm", "kernel", "a.py"],
    "kinds": ["root", "thread", "python", "operator", "kernel"],
    "nodes": {
        "parent": [-1, 0, 1, 2, 3],
        "kind": [0, 1, 2, 3, 4],
        "name": [0, 1, 2, 3, 4],
        "relation": [0, 0, 0, 0, 0],
        "file": [0, 0, 6, 0, 0],
        "line": [0, 0, 12, 0, 0],
        "class": [0, 0, 0, 0, 5],
    },
    "metrics": {
        "device_ns": {
            "node": [4],
            "count": [3],
            "sum": [30.0],
            "min": [5.0],
            "max": [20.0],
            "squares": [500.0],
            "nesting": "exclusive",
            "unit": "ns",
            "meaning": "a kernel",
        }
    },
}
SAMPLES = {
    "version": 1,
    "thread": 1,
    "since_unix_ns": 2000,
    "after_ns": [0, 1000],
    "place": [1, 0],
    "places": [
        {"function": "main", "file": "/train.py", "line": 3},
        {"function": "<module>", "file": "/train.py", "line": 9},
    ],
    "loop": [1],
}
MARKED = SAMPLES | {"mark": {"name": "ProfilerStep#0", "unix_ns": 1500, "error_ns": 20}}
COMPILED = {
    "version": 1,
    "graphs": [
        {
            "region": "0/0",
            "base": "",
            "inputs": ["fc"],
            "nodes": [
                {"name": "y", "target": "linear", "path": "fc", "elements": 8, "operations": 64, "reads": [0]}
            ],
            "programs": [{"key": "k", "backward": False, "code": "def call(self, args):"}],
        }
    ],
}
STORAGE = {
    "address": 1024,
    "bytes": 512,
    "device": "cuda:0",
    "kind": "parameter",
    "path": "fc.weight",
    "name": "fc",
    "lines": [["a.py", 3]],
}
MEMORY = {
    "format": "stepscope memory",
    "version": 1,
    "storages": {"before": [STORAGE], "after": [STORAGE, STORAGE | {"address": 2048}]},
    "uses": {
        "time_ns": [5, 9],
        "address": [1024, 2048],
        "shape": [0, 1],
        "dtype": [0, 0],
        "shapes": [[2, 3], [4]],
        "dtypes": ["float32"],
    },
    "out_of_memory": {"device": "cuda:0", "requested_bytes": 512, "file": "a.py", "line": 3},
}
FRAMES = [{"name": f"f{number}", "filename": "a.py", "line": number} for number in range(4)]
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 4096,
            "total_size": 2097152,
            "stream": 7,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "allocated_size": 512,
            "active_size": 512,
            "requested_size": 500,
            "frames": FRAMES[:1],
            "blocks": [
                {
                    "address": 4096,
                    "size": 512,
                    "requested_size": 500,
                    "state": "active_allocated",
                    "frames": FRAMES,
                },
                {"address": 4608, "size": 2096640, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            {
                "action": action,
                "addr": 4096 + 512 * number,
                "size": 512,
                "stream": 7,
                "time_us": 1_700_000_000_000_000 + 10 * number,
                "frames": FRAMES[: number % 4],
            }
            for number, action in enumerate(
                ["segment_alloc", "alloc", "alloc", "free_requested", "free_completed", "snapshot", "oom"]
            )
        ],
        [],
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1},
}
RAW_TIMELINE = [
    [-1, 1, 1000, 0],
    [5000, 2, 400, 4],
    [9000, 3, -400, 4],
    [9000, 3, 400, 6],
    [20000, 4, -400, 6],
]
LEVELS = [
    [5, 9, 12],
    [[0, 1000, 0, 0, 0, 0, 0, 0, 0], [0, 1000, 0, 0, 0, 400, 0, 0, 0], [0, 1000, 0, 0, 0, 0, 0, 400, 50]],
]
QUERIES = (
    "overview?rank=0&step=5",
    "levels?path=s5.0&every=1",
    "level?path=s5.0/t0",
    "axis?rank=0",
    "slices?track=s0&zoom=0&tile=0",
    "counter?counter=c0&zoom=1&tile=0",
    "path?event=3",
    "tiles?wanted=s0:0:0,c0:1:0",
    "area?from=0&to=900000&tracks=s0,s1",
    "search?text=mm",
    "search_hits?text=mm",
    "modules?rank=0&step=6",
    "kernels?step=5",
    "collectives?rank=0",
    "arrivals?step=5",
    "findings?rank=0",
    "contexts?by=device&up=1&start=0&most=9",
    "context_findings?rank=0",
    "memory?device=0&by=kind",
    "memory_moment?time=130000",
    "memory_tile?zoom=1&tile=0",
    "sources?rank=0&step=5",
    "source?file=train.py&rank=0",
    "schema",
    "changes",
    "pair?changes=amp&step=5",
    "query?sql=select%20name,%20count(*)%20from%20events%20group%20by%201",
    "whatif?changes=amp%0Ascale:name=aten::mm,factor=0.5&most=9",
    "details?path=s5.0/t0",
    "diff?against=run&against_rank=0",
    "select?module=0",
    "trace?path=s5.0",
    "details?path=s5.0/t1",
)
DOCUMENT = "import torch\nmodel = torch.nn.Linear(3, 4)\nbatch_size = 32\n"


def _job() -> Iterator[dict[str, Any]]:
    """Three steps with stages, modules, kernels, copies, a collective and memory."""
    number = 0

    def launched(name: str, at: float, kernel: str, stream: int, **args: Any) -> Iterator[Any]:
        nonlocal number
        number += 1
        key = {"correlation": number, "External id": number}
        kind = "gpu_memcpy" if "Memcpy" in kernel else "kernel"
        own = {"pid": 1, "tid": 1, "ph": "X"}
        yield own | {
            "cat": "cpu_op",
            "name": name,
            "ts": at,
            "dur": 8,
            "args": {
                "External id": number,
                "Sequence number": number,
                "Input Dims": [[8, 16], [16, 4]],
                "Input type": ["float", "float"],
            },
        }
        yield own | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "dur": 4, "args": key}
        yield {
            "ph": "X",
            "cat": kind,
            "name": kernel,
            "ts": at + 7,
            "dur": 9.5,
            "pid": 0,
            "tid": stream,
            "args": {**key, "stream": stream, "device": 0, **args},
        }

    group = {
        "Collective name": "allreduce",
        "In msg nelems": 64,
        "dtype": "Float",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
    }
    for step in range(3):
        at = 1000.0 * step
        own = {"pid": 1, "tid": 1, "ph": "X"}
        for name, start, length, cat in (
            (f"ProfilerStep#{step + 5}", 0, 1000, "user_annotation"),
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 90, "user_annotation"),
            ("train.py(7): <module>", 0.5, 998, "python_function"),
            ("nn.Module: Net_0", 100, 300, "python_function"),
            ("nn.Module: Linear_0", 110, 100, "python_function"),
            ("Optimizer.step#SGD.step", 800, 100, "user_annotation"),
        ):
            yield own | {"cat": cat, "name": name, "ts": at + start, "dur": length}
        yield from launched("aten::copy_", at + 60, "Memcpy HtoD (Pageable -> Device)", 7, bytes=512)
        yield from launched("aten::mm", at + 120, "sgemm_32x32", 7, grid=[1, 1, 1])
        yield own | {
            "cat": "cpu_op",
            "name": "MmBackward0",
            "ts": at + 450,
            "dur": 90,
            "tid": 2,
            "args": {"Sequence number": number, "Fwd thread id": 1},
        }
        yield from launched(
            "c10d::allreduce_", at + 600, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, **group
        )
        yield from launched("aten::item", at + 700, "Memcpy DtoH (Device -> Pageable)", 7, bytes=4)
        yield from launched("aten::add_", at + 810, "elementwise", 7)
        for place, size in ((130, 512), (900, -512)):
            yield {
                "ph": "i",
                "name": "[memory]",
                "ts": at + place,
                "pid": 1,
                "tid": 1,
                "s": "t",
                "args": {
                    "Bytes": size,
                    "Addr": 77,
                    "Device Type": 1,
                    "Device Id": 0,
                    "Total Allocated": 512,
                    "Total Reserved": 4096,
                },
            }


def _job_file() -> bytes:
    top = {
        "schemaVersion": 1,
        "record_shapes": 1,
        "baseTimeNanoseconds": 10**18,
        "deviceProperties": [
            {
                "id": 0,
                "name": "NVIDIA A100",
                "numSms": 108,
                "totalGlobalMem": 42_000_000_000,
                "computeMajor": 8,
            }
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1},
        "traceEvents": list(_job()),
        "traceName": "t.json",
    }
    return json.dumps(top).encode()


def _zip(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return file.getvalue()


def _database() -> bytes:
    from test_nsys import export, one_step

    with tempfile.TemporaryDirectory() as folder:
        path = export(Path(folder) / "run.sqlite", one_step())
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute("pragma page_size = 512")
            file.execute("vacuum")
        return path.read_bytes()


def _framed(*messages: dict[str, Any]) -> bytes:
    texts = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
    return b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(text), text) for text in texts)


def _session() -> bytes:
    """An editor that opens a document, asks everything about it, edits it and leaves."""
    uri = "file:///project/train.py"
    here = {
        "textDocument": {"uri": uri},
        "position": {"line": 2, "character": 3},
        "range": {"start": {"line": 0, "character": 0}, "end": {"line": 2, "character": 5}},
        "context": {"diagnostics": []},
    }
    change = {"range": here["range"], "text": "é😀\r\n"}
    asked = (
        "textDocument/hover",
        "textDocument/codeAction",
        "textDocument/inlayHint",
        "textDocument/codeLens",
        "stepscope/measure",
        "stepscope/batchEdit",
    )
    return _framed(
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "processId": None,
                "rootUri": "file:///project",
                "capabilities": {"general": {"positionEncodings": ["utf-8"]}},
                "initializationOptions": {"token": "token", "runScripts": "never"},
            },
        },
        {"method": "initialized", "params": {}},
        {
            "method": "textDocument/didOpen",
            "params": {"textDocument": {"uri": uri, "languageId": "python", "version": 1, "text": DOCUMENT}},
        },
        *(
            {"id": number, "method": method, "params": here | {"uri": uri, "value": 64}}
            for number, method in enumerate(asked, 2)
        ),
        {
            "method": "textDocument/didChange",
            "params": {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [change]},
        },
        {"method": "workspace/didChangeConfiguration", "params": {"settings": {"stepscope": {}}}},
        {
            "id": 20,
            "method": "workspace/executeCommand",
            "params": {"command": "stepscope.measureFile", "arguments": [uri]},
        },
        {"method": "textDocument/didSave", "params": {"textDocument": {"uri": uri}}},
        {"method": "textDocument/didClose", "params": {"textDocument": {"uri": uri}}},
        {"id": 30, "method": "shutdown"},
        {"method": "exit"},
    )


def _requests() -> dict[str, bytes]:
    """A request for each answer, and some to the rest of the server."""
    headers = b"host: 127.0.0.1:8765\nauthorization: Bearer TOKEN"
    found = {
        f"requests/{query.partition('?')[0]}": f"GET /api/traces/run/{query}".encode() for query in QUERIES
    }
    found |= {
        "requests/traces": b"GET /api/traces",
        "requests/page": b"GET /?token=TOKEN",
        "requests/file": b"GET /index.html",
        "requests/open": b"GET /api/traces/run/open",
        "requests/job": b"GET /api/job",
    }
    return {name: line + b"\n" + headers for name, line in found.items()}


def _cuda_graph() -> bytes:
    """A profile of a program that XLA launches as a CUDA graph."""
    from xspaces import Operation, Slice, xspace

    names = ("loop_add_fusion_2", "Memset 0", "sm90_gemm", "loop_add_fusion_2", "cudnn::conv")
    kernels = [
        Slice(
            name,
            at,
            1,
            hlo_op="command_buffer",
            hlo_module="jit_step",
            program_id=1,
            correlation_id=at // 3,
            cuda_graph_node_id=at,
        )
        for at, name in enumerate(names)
    ]
    operations = {
        "cublas.7": Operation("custom-call", "jit(step)/b/dot", turn=2),
        "loop_add_fusion.2": Operation("fusion", "jit(step)/a/add", turn=1),
        "loop_add_fusion.3": Operation("fusion", "jit(step)/c/add", turn=3),
    }
    return xspace({"/device:GPU:0": {"Stream #1": kernels}}, {"jit_step": operations})


def _zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def _dumps() -> dict[str, bytes]:
    """Dumps of a rank that waits for another, with and without stacks."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "models" / "ranks"))
    from hung_job import Call, Job, steps

    programs = {0: [*steps(2), Call("send", 30, peer=1), Call("all_reduce", 40)], 1: steps(2)}
    with tempfile.TemporaryDirectory() as folder:
        job = Job(programs, {"1": [0, 1]})
        (as_pickle,) = job.write(Path(folder), [0])
        pickled = as_pickle.read_bytes()
        (as_json,) = job.write(Path(folder), [0], as_json=True)
        return {"dump/rank.pickle": pickled, "dump/rank.json": as_json.read_bytes()}


def _watched() -> bytes:
    """A watched run of 40 steps, as `targets.write_watched` takes it."""
    steps = [[n, 1, n * 20_000_000, 19_000_000, 1.5, 8, 2, 0, 0, 0.5, 0, 0, 15, 1] for n in range(40)]
    place = {"kind": "checkpoint", "function": "save", "file": "/a.py", "line": 3, "count": 2, "total_ns": 3}
    facts = {"created_unix_ns": 10**9, "begun_unix_ns": 5 * 10**9, "command": "a.py", "places": [place]}
    samples = [[n * 10_000_000, n % 2, n % 3 // 2] for n in range(80)]
    described = {
        "steps": steps,
        "facts": facts,
        "lines": [["f", "a.py", 1], ["g", "a.py", 2]],
        "samples": samples,
    }
    return json.dumps(described).encode()


def _onnx() -> dict[str, bytes]:
    from test_onnx_model import _model, _node

    around = ["", "layers.0", "layers.0.fc", "linear"], ["a.Net", "a.Block", "torch.nn.Linear", "aten.linear"]
    named = [
        _node("/conv/Conv", "Conv"),
        _node("/layers.0/fc/MatMul", "MatMul"),
        _node("/Reshape", "Reshape"),
    ]
    return {
        "onnx/scopes.onnx": _model(_node("node_MatMul", "MatMul", *around)),
        "onnx/names.onnx": _model(*named),
    }


ASCEND = [
    {"ph": "M", "name": "process_labels", "pid": 3, "args": {"labels": "NPU"}},
    {"ph": "M", "name": "process_name", "pid": 3, "args": {"name": "Ascend Hardware"}},
    {"ph": "M", "name": "thread_name", "pid": 3, "tid": 2, "args": {"name": "Stream 2"}},
    *(
        {"ph": "X", "name": f"conv{n}-Conv2d", "ts": n * 290, "dur": 290, "pid": 3, "tid": 2}
        for n in range(3)
    ),
    *(
        {"ph": "X", "name": name, "ts": 900, "dur": 90, "pid": 3, "tid": 2}
        for name in ("NOTIFY_WAIT", "MEMCPY_ASYNC")
    ),
]


def main() -> None:
    """Write one file per seed, in a folder per target."""
    from test_any_xplane import SAMPLE
    from xspaces import Operation, program

    kineto = json.dumps({"schemaVersion": 1, "traceEvents": TRAIN + WORK, "end": 1}).encode()
    seeds = {
        "file/kineto.json": kineto,
        "file/array.json": json.dumps(TRAIN + PAIRS).encode(),
        "file/kineto.json.gz": gzip.compress(kineto, mtime=0),
        "file/kineto.json.zst": _zstd(kineto),
        "file/paddle.json": json.dumps({"traceEvents": PADDLE}).encode(),
        "file/ascend.json": json.dumps(ASCEND).encode(),
        "watched/steps.json": _watched(),
        **_dumps(),
        **_onnx(),
        "file/utf16.json": kineto.decode().encode("utf-16"),
        "file/profile.xplane.pb": SAMPLE,
        "manifest/plain.json": json.dumps(MANIFEST).encode(),
        "model/plain.json": json.dumps(MODEL).encode(),
        "model/roots.json": json.dumps({"roots": [MODEL]}).encode(),
        "contexts/plain.json": json.dumps(CONTEXTS).encode(),
        "memory/plain.json": json.dumps(MEMORY).encode(),
        "samples/plain.json": json.dumps(SAMPLES).encode(),
        "samples/marked.json": json.dumps(MARKED).encode(),
        "compiled/plain.json": json.dumps(COMPILED).encode(),
        "capture/plain.zip": _zip(
            {
                "manifest.json": json.dumps(MANIFEST).encode(),
                "modules.json": json.dumps({"roots": [MODEL]}).encode(),
                "trace.json": kineto,
                "contexts.json": json.dumps(CONTEXTS).encode(),
                "memory.json": json.dumps(MEMORY).encode(),
            }
        ),
        "capture/jax.zip": _zip(
            {"manifest.json": json.dumps(MANIFEST | {"framework": "jax"}).encode(), "trace.xplane.pb": SAMPLE}
        ),
        "capture/snapshot.zip": _zip(
            {
                "manifest.json": json.dumps(MANIFEST).encode(),
                "trace.json": kineto,
                "snapshot.pickle": pickle.dumps(SNAPSHOT, 4),
            }
        ),
        "xplane/profile.xplane.pb": SAMPLE,
        "xplane/cuda_graph.xplane.pb": _cuda_graph(),
        "program/step.hlo.pb": program(
            {
                "x": Operation("parameter", shape="f32[4,4]"),
                "dot.1": Operation(
                    "dot", "jit(step)/jvp(MLP)/dot_general", "a.py", 3, "f32[4,4]", ("x", "x")
                ),
                "add.2": Operation("add", "jit(step)/add", "a.py", 4, "f32[4,4]", ("dot.1", "x")),
            }
        ),
        "nsys/step.sqlite": _database(),
        **{f"snapshot/protocol{number}.pickle": pickle.dumps(SNAPSHOT, number) for number in (2, 4)},
        "snapshot/list.pickle": pickle.dumps(SNAPSHOT["segments"], 4),
        "timeline/raw.json": json.dumps(RAW_TIMELINE).encode(),
        "timeline/levels.json": json.dumps(LEVELS).encode(),
        "commands/job.json": _job_file(),
        "commands/kineto.json": kineto,
        "commands/array.json": json.dumps(TRAIN + PAIRS).encode(),
        "messages/session.txt": _session(),
        **_requests(),
    }
    for name, data in seeds.items():
        (CORPUS / name).parent.mkdir(parents=True, exist_ok=True)
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
