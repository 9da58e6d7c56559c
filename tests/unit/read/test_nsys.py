"""Nsight Systems recordings that were exported to SQLite."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import stepscope
from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.errors import IngestError
from stepscope.facts.summary.report_facts import summarize
from stepscope.read.nsys.activities import parse
from stepscope.trace.trace import Trace

MS = 1_000_000
_NAMES = {
    1: "gemm",
    2: "void gemm<float>(float*)",
    3: "cudaLaunchKernel_v7000",
    4: "cudaMemcpyAsync_v3020",
    5: "python3",
    6: "cuLaunchKernelEx_ptsz",
}
_KERNEL = (
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "demangledName",
    "shortName",
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
)
_COPY = (
    "start",
    "end",
    "deviceId",
    "streamId",
    "correlationId",
    "globalPid",
    "bytes",
    "copyKind",
    "srcKind",
    "dstKind",
)
_CALL = ("start", "end", "globalTid", "correlationId", "nameId")
_RANGE = ("start", "end", "eventType", "text", "textId", "globalTid")


def process(number: int) -> int:
    """A globalPid."""
    return (1 << 48) + (number << 24)


def thread(pid: int, tid: int) -> int:
    """A globalTid."""
    return process(pid) + tid


def export(path: Path, tables: Mapping[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]) -> Path:
    """Write tables (their columns and rows) as `nsys export --type sqlite` does."""
    with sqlite3.connect(path) as file:
        for name, (columns, rows) in tables.items():
            file.execute(f"create table {name} ({', '.join(columns)})")
            marks = ", ".join("?" * len(columns))
            file.executemany(f"insert into {name} values ({marks})", rows)
    file.close()
    return path


_NO_CUDA = "No CUDA events collected. Does the process use CUDA?"


def strings() -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
    return ("id", "value"), _NAMES.items()


def one_step(pid: int = 7, correlation: int = 100, late: int = 0) -> dict[str, Any]:
    """A range around an operator that launches a kernel and a copy."""
    who = thread(pid, 9)
    return {
        "StringIds": strings(),
        "ThreadNames": (("globalTid", "nameId"), [(who, 5)]),
        "TARGET_INFO_GPU": (("id", "name", "smCount"), [(0, "NVIDIA H100 80GB HBM3", 132)]),
        "NVTX_EVENTS": (
            _RANGE,
            [
                (late, late + 9 * MS, 59, "forward", None, who),
                (
                    late + MS,
                    late + 4 * MS,
                    59,
                    "aten::mm, seq = 5, op_id = 3, sizes = [[2, 3], [3, 4]]",
                    None,
                    who,
                ),
                (late, late, 34, "a mark", None, who),
            ],
        ),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            _CALL,
            [
                (late + 2 * MS, late + 3 * MS, who, correlation, 3),
                (late + 5 * MS, late + 6 * MS, who, correlation + 1, 4),
            ],
        ),
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            _KERNEL,
            [
                (
                    late + 3 * MS,
                    late + 7 * MS,
                    0,
                    7,
                    correlation,
                    process(pid),
                    2,
                    1,
                    8,
                    2,
                    1,
                    128,
                    1,
                    1,
                    40,
                    1000,
                    24,
                )
            ],
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            _COPY,
            [(late + 7 * MS, late + 8 * MS, 0, 7, correlation + 1, process(pid), 4096, 1, 1, 2)],
        ),
    }


def opened(path: Path) -> Trace:
    return stepscope.open(path, cache=False)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """What events are, by start."""
    return [
        (row["name"], row["category"], row["start_ns"] / MS, row["duration_ns"] / MS)
        for row in trace.events.rows()
    ]


def test_every_table_becomes_events_on_threads_and_streams(tmp_path: Path) -> None:
    trace = opened(export(tmp_path / "one.sqlite", one_step()))

    assert rows(trace) == [
        ("forward", "annotation", 0, 9),
        ("aten::mm", "cpu_op", 1, 3),
        ("cudaLaunchKernel", "runtime", 2, 1),
        ("void gemm<float>(float*)", "kernel", 3, 4),
        ("cudaMemcpyAsync", "runtime", 5, 1),
        ("Memcpy HtoD (Pinned -> Device)", "memcpy", 7, 1),
    ]
    tracks = [(row["kind"], row["name"], row["device"]) for row in trace["tracks"].rows()]
    assert sorted(tracks) == [("cpu", "python3 9", None), ("device", "stream 7", 0)]
    assert trace.metadata.format == "Nsight Systems export"
    assert trace.metadata.framework == "pytorch"
    assert trace.metadata.devices == ({"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132},)


def test_calls_of_the_system_are_those_of_threads_that_launch(tmp_path: Path) -> None:
    """What explains a gap is named; what CUDA does inside its own calls, and other threads, is not."""
    loop, names = thread(7, 9), {**_NAMES, 90: "pread", 91: "ioctl", 92: "poll", 93: "cudaLaunchKernel_v7000"}
    launches = [(at * MS, at * MS + MS // 10, loop, at, 93) for at in (0, 20, 40)]
    kernels = [
        (*(at * MS + MS // 5, at * MS + MS), 0, 7, at, process(7), 2, 1, *[1] * 9) for at in (0, 20, 40)
    ]
    called = [(2 * MS, 18 * MS, loop, 90), (22 * MS, 38 * MS, loop, 90), (MS // 50, MS // 20, loop, 91)]
    tables = {
        "StringIds": (("id", "value"), names.items()),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (_CALL, launches),
        "CUPTI_ACTIVITY_KIND_KERNEL": (_KERNEL, kernels),
        "OSRT_API": (("start", "end", "globalTid", "nameId"), [*called, (0, 40 * MS, thread(7, 5), 92)]),
    }
    trace = opened(export(tmp_path / "os.sqlite", tables))
    assert {row[:2] for row in rows(trace) if row[1] == "other"} == {("pread", "other")}
    (finding,) = (one for one in apply_rules(RuleContext(trace), RULES) if one.rule == "idle_device")
    assert "mostly in pread" in finding.what


def test_calls_of_the_system_are_left_out_within_calls_of_their_own_thread_alone(tmp_path: Path) -> None:
    one, other = thread(7, 9), thread(7, 11)
    tables = one_step() | {
        "CUPTI_ACTIVITY_KIND_RUNTIME": (_CALL, [(0, 10, one, 1, 3), (20, 30, other, 2, 3)]),
        "OSRT_API": (
            ("start", "end", "globalTid", "nameId"),
            [(at, at + 1, who, 5) for who in (one, other) for at in (5, 15, 25)],
        ),
    }
    events = opened(export(tmp_path / "os.sqlite", tables)).events
    kept = events.text("category").mask("other")
    assert events["start_ns"][kept].tolist() == [5, 15, 15, 25]


def test_work_belongs_to_the_range_that_launched_it(tmp_path: Path) -> None:
    trace = opened(export(tmp_path / "one.sqlite", one_step()))

    kernel, copy = (row for row in trace.events.rows() if row["category"] in ("kernel", "memcpy"))
    assert (kernel["stage"], copy["stage"], copy["bytes"]) == ("forward", "forward", 4096)
    assert trace.event_arguments(kernel["id"]) == {
        "grid": [8, 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 40,
        "shared memory": 1024,
    }
    (operator,) = (row for row in trace.events.rows() if row["name"] == "aten::mm")
    assert operator["sequence"] == 5
    assert trace.event_arguments(operator["id"])["Input Dims"] == [[2, 3], [3, 4]]


def test_processes_with_the_same_correlation_ids_are_ranks(tmp_path: Path) -> None:
    one, other = one_step(pid=7), one_step(pid=8, late=MS)
    both = {
        name: (columns, [*found] if name in ("StringIds", "TARGET_INFO_GPU") else [*found, *other[name][1]])
        for name, (columns, found) in one.items()
    }

    trace = opened(export(tmp_path / "two.sqlite", both))

    assert trace.metadata.ranks == (0, 1)
    for row in trace["steps"].rows():
        assert row["device_busy_ns"] == 5 * MS


@pytest.mark.parametrize(
    "missing",
    ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds", "CUPTI_ACTIVITY_KIND_MEMCPY", "ThreadNames"],
)
def test_a_table_that_was_not_exported_is_missing_alone(missing: str, tmp_path: Path) -> None:
    tables = one_step()
    del tables[missing]

    trace = opened(export(tmp_path / "less.sqlite", tables))

    expected = {"annotation", "cpu_op", "runtime", "kernel", "memcpy"} - {
        "NVTX_EVENTS": {"annotation", "cpu_op"},
        "CUPTI_ACTIVITY_KIND_RUNTIME": {"runtime"},
        "CUPTI_ACTIVITY_KIND_MEMCPY": {"memcpy"},
    }.get(missing, set())
    assert {row["category"] for row in trace.events.rows()} == expected
    unnamed = trace["warnings"].text("code").mask("unnamed_work").any()
    assert unnamed == (missing == "StringIds")


def test_pages_of_managed_memory_are_moved_by_no_call_and_within_kernels(tmp_path: Path) -> None:
    tables = one_step()
    columns, (row,) = tables["CUPTI_ACTIVITY_KIND_MEMCPY"]
    moved = dict(zip(columns, row, strict=True)) | {"start": 4 * MS, "end": 5 * MS, "correlationId": 0}
    rows = [row, *(tuple((moved | {"copyKind": kind}).values()) for kind in (11, 12))]
    tables["CUPTI_ACTIVITY_KIND_MEMCPY"] = columns, rows
    trace = opened(export(tmp_path / "managed.sqlite", tables))
    assert trace.events.text("category").mask("memcpy").sum() == 1
    (warning,) = (row for row in trace["warnings"].rows() if row["code"] == "moved_pages")
    assert (warning["count"], warning["message"]) == (
        2,
        "pages of managed memory moved: the time of kernels may include waits for pages",
    )


# Columns that versions of the schema lack, from that of 2026 back to that of 2019.
_LACK = tuple(
    columns.split()
    for columns in (
        "",
        "greenContextId graphId",
        "greenContextId graphId graphNodeId mangledName",
        "greenContextId graphId graphNodeId mangledName textId dstKind",
        "greenContextId graphId graphNodeId mangledName textId srcKind dstKind demangledName globalPid "
        "registersPerThread",
    )
)


def test_columns_of_an_old_version_are_enough(tmp_path: Path) -> None:
    """Without process, long name, registers and shared memory."""
    trace = opened(export(tmp_path / "old.sqlite", without_columns(one_step(), _LACK[-1])))

    (found,) = (row for row in trace.events.rows() if row["category"] == "kernel")
    assert (found["name"], found["stage"]) == ("gemm", "forward")


def without_columns(tables: dict[str, Any], lacking: Sequence[str]) -> dict[str, Any]:
    result = {}
    for table, (columns, rows) in tables.items():
        kept = [at for at, name in enumerate(columns) if name not in lacking]
        result[table] = ([columns[at] for at in kept], [[row[at] for at in kept] for row in rows])
    return result


def of_version(lacking: Sequence[str]) -> dict[str, Any]:
    """Two processes with random work, as a version writes it."""
    random = Random(len(lacking))
    tables = one_step()
    for table, extra in (("KERNEL", 300), ("MEMCPY", 40)):
        columns, (row,) = tables[f"CUPTI_ACTIVITY_KIND_{table}"]
        columns = (*columns, "greenContextId", "graphId", "graphNodeId", "mangledName")
        rows = []
        for at in range(extra):
            start = random.randrange(20 * MS)
            named = {
                "demangledName": random.choice([1, 2]),
                "shortName": 1,
                "copyKind": random.choice([1, 2, 8]),
            }
            values = dict(zip(columns, (*row, 0, 1, at, 2), strict=True)) | named
            values |= {"start": start, "end": start + random.randrange(MS), "correlationId": 1000 + at}
            values |= {"globalPid": process(random.choice([7, 8]))}
            rows.append([values[name] for name in columns])
        tables[f"CUPTI_ACTIVITY_KIND_{table}"] = (columns, rows)
    return without_columns(tables, lacking)


@pytest.mark.parametrize("version", [*range(len(_LACK)), "h100_2gpu_1s", "healthy_1pct"])
def test_totals_are_those_of_sql(version: int | str, tmp_path: Path, traces: Path) -> None:
    if isinstance(version, int):
        path = export(tmp_path / "run.sqlite", of_version(_LACK[version]))
    else:
        path = traces / "nsys_sqlite" / f"{version}.sqlite"
    events = opened(path).events
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as file:
        for table, category in (("KERNEL", "kernel"), ("MEMCPY", "memcpy"), ("MEMSET", "memset")):
            work = events.text("category").mask(category)
            sql = f"select count(*), total(end - start) from CUPTI_ACTIVITY_KIND_{table}"
            total = file.execute(sql).fetchone() if columns_in(file, table) else (0, 0)
            assert (work.sum(), events["duration_ns"][work].sum()) == total
        name = "demangledName" if "demangledName" in columns_in(file, "KERNEL") else "shortName"
        kernels = f"CUPTI_ACTIVITY_KIND_KERNEL join StringIds on id = {name}"
        sql = f"select value, sum(end - start) from {kernels} group by value"
        expected = dict(file.execute(sql).fetchall())
    rows = np.flatnonzero(events.text("category").mask("kernel"))
    found: dict[str, int] = defaultdict(int)
    for kernel, time in zip(
        events.text("name").take(rows), events["duration_ns"][rows].tolist(), strict=True
    ):
        found[kernel or ""] += time
    assert found == expected


def columns_in(file: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in file.execute(f"pragma table_info(CUPTI_ACTIVITY_KIND_{table})")}


def test_a_compressed_export_is_the_same(tmp_path: Path) -> None:
    plain = export(tmp_path / "one.sqlite", one_step())
    packed = tmp_path / "one.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert rows(opened(packed)) == rows(opened(plain))


def test_an_index_that_another_tool_added_changes_nothing(tmp_path: Path) -> None:
    """SQLite reads a column from an index that has it, in that index's order."""
    path = export(tmp_path / "one.sqlite", one_step())
    expected = rows(opened(path))
    with sqlite3.connect(path) as file:
        for table, column in (("NVTX_EVENTS", "text"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid")):
            file.execute(f"create index {table}_{column} on {table} ({column})")
        file.execute("analyze")
    file.close()
    assert rows(opened(path)) == expected


def test_files_of_ranks_are_on_the_clock_of_their_sessions(tmp_path: Path) -> None:
    """Each counts from the start of its own session."""
    for rank, late in enumerate((0, 5)):
        begun = {"TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), [(1_700_000_000_000 * MS + late * MS,)])}
        export(tmp_path / f"rank{rank}.sqlite", one_step() | begun)
    trace = opened(tmp_path)
    steps = [(row["rank"], row["start_ns"] / MS) for row in trace["steps"].rows()]
    assert steps == [(0, 0), (1, 5)]


def test_a_range_without_an_end_is_counted(tmp_path: Path) -> None:
    tables = one_step()
    columns, ranges = tables["NVTX_EVENTS"]
    tables["NVTX_EVENTS"] = (columns, [*ranges, (8 * MS, None, 60, "open", None, thread(7, 9))])

    trace = opened(export(tmp_path / "open.sqlite", tables))

    assert [row["duration_ns"] for row in trace.events.rows() if row["name"] == "open"] == [0]
    assert "long_duration" in {row["code"] for row in trace["warnings"].rows()}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"songs": (("title",), [("a",)])}, "an SQLite database without tables of Nsight Systems"),
        ({"StringTable": (("_id_",), [(1,)])}, "found a database of nvprof; record with `nsys profile"),
        ({"rocpd_region_5f": (("id",), [(1,)])}, "of AMD's rocprofv3; run `rocpd convert"),
        ({"NVTX_EVENTS": (_RANGE, [])}, "an Nsight Systems export without CUDA and NVTX events; record with"),
        (
            {"META_DATA_EXPORT": (("name", "value"), []), "DIAGNOSTIC_EVENT": (("text",), [(_NO_CUDA,)])},
            f"without CUDA and NVTX events.*; the recorder reported: {_NO_CUDA[:24]}",
        ),
    ],
)
def test_another_database_is_refused(tables: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=message):
        opened(export(tmp_path / "other.sqlite", tables))


def test_nothing_in_the_file_runs(tmp_path: Path) -> None:
    """A view in place of a table is no table, and cells may be of any type."""
    tables = one_step()
    columns, (kernel,) = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = (columns, [kernel, ["x" * 50, *kernel[1:]]])
    path = export(tmp_path / "odd.sqlite", tables)
    with sqlite3.connect(path) as file:
        file.execute("drop table CUPTI_ACTIVITY_KIND_MEMCPY")
        endless = "with recursive n(x) as (select 1 union all select x + 1 from n)"
        file.execute(f"create view CUPTI_ACTIVITY_KIND_MEMCPY as {endless} select x as start from n")
    file.close()

    found = {row["category"] for row in opened(path).events.rows()}

    assert found == {"annotation", "cpu_op", "runtime", "kernel"}


@pytest.mark.main
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    good = bytearray(export(tmp_path / "one.sqlite", one_step()).read_bytes())
    random, path = Random(0), tmp_path / "damaged.sqlite"
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(random.randint(1, 40)):
            bad[random.randrange(16, len(bad))] = random.randrange(256)
        path.write_bytes(bad[: random.choice([len(bad), random.randrange(200, len(bad))])])
        with suppress(IngestError):
            assert len(opened(path).events)


NAMES = [
    ("aten::mm", ("aten::mm", -1, False, False)),
    ("aten::mm, op_id = 4", ("aten::mm", -1, True, False)),
    ("aten::mm, seq = 9", ("aten::mm", 9, True, False)),
    ("AddmmBackward0, seq = 9, op_id = 4", ("AddmmBackward0", 9, True, True)),
    (
        "autograd::engine::evaluate_function: AddmmBackward0, seq = 9",
        ("autograd::engine::evaluate_function: AddmmBackward0", 9, True, True),
    ),
    ("FSDP::pre_forward (layer.1), op_id = 7", ("FSDP::pre_forward (layer.1)", -1, False, False)),
    ("Optimizer.step#AdamW.step, op_id = 7", ("Optimizer.step#AdamW.step", -1, False, False)),
    ("epoch 3, step 4", ("epoch 3, step 4", -1, False, False)),
]


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_what_pytorch_appends_to_names(text: str, expected: tuple[Any, ...]) -> None:
    found = parse(text)
    assert (found.name, found.sequence, found.is_operator, found.is_backward) == expected


def test_busy_time_of_a_real_export_is_that_of_its_rows(traces: Path) -> None:
    """Two processes, each with a GPU: FSDP with weights on the CPU."""
    path = traces / "nsys_sqlite" / "h100_2gpu_1s.sqlite"
    trace = opened(path)

    assert trace.metadata.ranks == (0, 1)
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as file:
        for rank in trace.metadata.ranks:
            spans = [
                span
                for table in ("KERNEL", "MEMCPY", "MEMSET")
                for span in file.execute(
                    f"select start, end from CUPTI_ACTIVITY_KIND_{table} where deviceId = {rank}"
                )
            ]
            on_device = trace["tracks"]["device"][trace.events["track"]] == rank
            start, length = trace.events["start_ns"], trace.events["duration_ns"]
            found = zip(start[on_device], (start + length)[on_device], strict=True)
            assert union_ns(found) == union_ns(spans)
            (step,) = (row for row in trace["steps"].rows() if row["rank"] == rank)
            assert step["device_busy_ns"] <= union_ns(spans)


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """The time that at least one of some spans covers."""
    start, end = np.array(sorted(spans)).T
    reached = np.append(start[0], np.maximum.accumulate(end)[:-1])
    return int(np.maximum(end - np.maximum(start, reached), 0).sum())


# -- a loop in PyTorch with the user's ranges, whose backward autograd's thread launches


def a_loop(range_name: str, autograd: str = "pt_autograd_0", kind: int = 59) -> dict[str, Any]:
    """Steps of 30 ms: 6 ms of kernels in forward, 12 in backward, 2 in the optimizer."""
    main, other, names = thread(7, 9), thread(7, 10), {**_NAMES, 9: autograd}
    ranges, calls, kernels, correlation = [], [], [], 0
    for step in range(4):
        begin = 30 * step * MS
        parts = (
            ("forward", 0, 8, main, 6),
            ("backward", 9, 15, other, 12),
            ("optimizer_step", 25, 4, main, 2),
        )
        ranges.append((begin, begin + 30 * MS - 10_000, kind, range_name.format(step), None, main))
        for name, after, length, who, works in parts:
            first = begin + after * MS
            ranges.append((first, first + length * MS, kind, name, None, main))
            for work in range(works):
                correlation += 1
                call, start = first + (work + 1) * 100_000, first + (work + 1) * MS
                calls.append((call, call + 5000, who, correlation, 3))
                kernels.append((start, start + MS, 0, 7, correlation, process(7), 2))
    return {
        "StringIds": (("id", "value"), names.items()),
        "ThreadNames": (("globalTid", "nameId"), [(main, 5), (other, 9)]),
        "TARGET_INFO_GPU": (
            ("id", "name", "computeMajor", "computeMinor"),
            [(0, "NVIDIA A100-SXM4-80GB", 8, 0)],
        ),
        "NVTX_EVENTS": (_RANGE, ranges),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (_CALL, calls),
        "CUPTI_ACTIVITY_KIND_KERNEL": (_KERNEL[:7], kernels),
    }


def device_ms(trace: Trace) -> dict[str, float]:
    """Device time of each stage of a step."""
    return {one.stage: round(one.device_ms, 3) for one in summarize(trace).stages}


@pytest.mark.parametrize("autograd", ["pt_autograd_0", "python3"])
@pytest.mark.parametrize("kind", [59, 60])
def test_kernels_of_autograds_thread_are_of_backward(autograd: str, kind: int, tmp_path: Path) -> None:
    trace = opened(export(tmp_path / "loop.sqlite", a_loop("step {}", autograd, kind)))
    assert device_ms(trace) == {"forward": 6, "backward": 12, "optimizer": 2, "other": 0}


def test_a_thread_that_copies_while_the_loop_is_in_its_own_backward_is_not_autograd(tmp_path: Path) -> None:
    """Backward launches on the loop's thread; another thread fetches the next batch meanwhile."""
    tables = a_loop("step {}", "fetcher")
    _, calls = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    fetches = [at for at, call in enumerate(calls) if call[2] == thread(7, 10)]
    for at in fetches:
        if at % 20 != fetches[0]:  # the first kernel of each backward stays the fetcher's
            calls[at] = (*calls[at][:2], thread(7, 9), *calls[at][3:])
    trace = opened(export(tmp_path / "loop.sqlite", tables))
    assert device_ms(trace) == {"forward": 6, "backward": 11, "optimizer": 2, "other": 1}


# How people name the ranges of their steps, with the number of each where `{}` is.
STEP_NAMES = """step {}|Step#{}|step_{}|step={}|step-{}|Step: {}|[step {}]|step{} (rank 0)|rank 0: step {}
iter{}|iter_{}|iter 0000{}|iter: {}, epoch: 1|iteration:{}|Iteration {}/100|training iteration #{}
train_step|training_step {}|Training step {} / 100|train step [{}]|train/step/{}|trainer.step {}|TrainStep {}
step_{}_of_10|Step {}, epoch 1|epoch 0/step {}|epoch=1 step={}|Epoch[1/10] Step[{}/100]|Epoch 3, iter {}
batch {}/100|batch_{}|epoch 0 batch {}|epoch 1, batch {} of 100|mini-batch {}|train_batch|run_batch|trainStep
batch_idx={}|train_on_batch|TRAIN_STEP_{}|rank0_step{}|batch {} (epoch 1)|[Epoch 1] Batch {}|step index {}
[Trainer]run_training_batch|[pl][profile]run_training_batch|DeepSpeedEngine.train_step|global_step: {}
## step {} ##|train_iter/{}|Iteration: {} (epoch 0)|it {}|ep0/it{}|forward_backward_step {}|fwd-bwd step {}
stepNum={}|StepID:{}|step:{} loss:0.5|iter {} tokens 1024|iteration={},lr=0.1, loss=2e-3"""
OTHER_NAMES = """eval_step {}|val_step {}|validation batch {}|test step|optimizer step|lr_scheduler.step
load batch {}|next_batch|get_batch|copy batch {} to device|batch_norm {}|batch size 32|micro batch {}
stepping {}|work {}|epoch {}|step_lr|forward_step|step {} forward|Optimizer.step#SGD.step|scaler.step
step {} loss|step {} loss 0.5 backward"""


def steps_of(ranges: list[tuple[str, int, int]], **how: Any) -> list[tuple[Any, ...]]:
    """Number, start, end (ms) and evidence of the steps in a trace with ranges (name, start, end)."""
    ranges = sorted(ranges, key=lambda each: (each[1], -each[2]))
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "name": name,
            "cat": "user_annotation",
            "ts": at * 1e3,
            "dur": (end - at) * 1e3,
        }
        for name, at, end in ranges
    ]
    work = {"ph": "X", "pid": 1, "tid": 1, "name": "aten::mm", "cat": "cpu_op", "dur": 1e3}
    events += [{**work, "ts": at * 1e3} for at in range(ranges[-1][2])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events}))
        steps = stepscope.open(path, cache=False, **how)["steps"]
    columns = (steps["step"], steps["start_ns"] // MS, steps["end_ns"] // MS)
    return [*zip(*(column.tolist() for column in columns), steps.text("evidence"), strict=True)]


def test_ranges_with_the_name_of_a_step_are_steps(tmp_path: Path) -> None:
    expected = [(step, 30 * step, 30 * step + 30, "range") for step in range(4)]
    for name in re.split(r"[|\n]", STEP_NAMES):
        ranges = [(name.format(step), 30 * step, 30 * step + 30) for step in range(4)]
        assert steps_of(ranges) == expected, name
    steps = opened(export(tmp_path / "loop.sqlite", a_loop("iter_{}")))["steps"]
    assert steps["window_start_ns"].tolist() == [0, 30 * MS, 60 * MS, 90 * MS]


def test_ranges_with_other_names_are_not() -> None:
    for name in re.split(r"[|\n]", OTHER_NAMES):
        ranges = [(name.format(step), 30 * step, 30 * step + 30) for step in range(4)]
        assert "range" not in {evidence for *_, evidence in steps_of(ranges)}, name


def test_the_user_chooses_the_ranges_that_are_steps(tmp_path: Path) -> None:
    path = export(tmp_path / "loop.sqlite", a_loop("work {}"))
    steps = stepscope.open(path, range_name="work", cache=False)["steps"]
    assert steps["window_start_ns"].tolist() == [0, 30 * MS, 60 * MS, 90 * MS]
    with pytest.raises(
        IngestError, match=r"no range is called 'wrok'; the longest ranges .*: 'work 3', 'backward'"
    ):
        stepscope.open(path, range_name="wrok", cache=False)


def test_the_user_chooses_the_part_to_look_at() -> None:
    """Two epochs of three steps of 10 ms, each 4 ms of forward; 20 ms of validation follow each epoch."""
    steps = [50 * epoch + 10 * step for epoch in range(2) for step in range(3)]
    ranges = [
        *((f"epoch {epoch}", 50 * epoch, 50 * epoch + 30) for epoch in range(2)),
        *((f"step {at}", at, at + 10) for at in steps),
        *(("forward", at + 2, at + 6) for at in steps),
        *(("validation", at, at + 20) for at in (30, 80)),
    ]
    assert [row[1:3] for row in steps_of(ranges)] == [(at, at + 10) for at in steps]
    in_second = [(at, at, at + 10, "range") for at in steps[3:]]
    assert steps_of(ranges, range_name="epoch 1") == in_second
    parts = [(number, at + 2, at + 6, "range") for number, at in enumerate(steps)]
    assert steps_of(ranges, range_name="forward") == parts
    assert steps_of([*ranges, ("epoch 10", 100, 130)], range_name="epoch 1") == in_second
    optimizer = [(f"Optimizer.step#SGD.step{at}x", at + 6, at + 8) for at in steps]
    named = steps_of([*ranges, *optimizer], range_name="Optimizer.step")
    assert [row[1:3] for row in named] == [(at + 6, at + 8) for at in steps]
    assert steps_of([*ranges, *optimizer], range_name="Optimizer.step#SGD.step7x") == named
    assert steps_of(ranges, range_name="validation") == [(0, 30, 50, "range"), (1, 80, 100, "range")]


def test_the_compute_capability_is_that_of_the_file(tmp_path: Path) -> None:
    trace = opened(export(tmp_path / "loop.sqlite", a_loop("step {}")))
    (device,) = trace.metadata.devices
    assert (device["computeMajor"], device["computeMinor"]) == (8, 0)


def test_dropped_records_are_said_and_withhold_the_verdict(tmp_path: Path) -> None:
    tables = a_loop("step {}")
    columns, kernels = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = (columns, kernels[::5])
    note = "CUDA device 0: 1200 CUDA kernel records were dropped."
    tables["DIAGNOSTIC_EVENT"] = (("timestamp", "text"), [(0, note), (1, "Profiling has started.")])

    summary = summarize(opened(export(tmp_path / "dropped.sqlite", tables)))

    assert summary.warnings[0].message == f"the recorder reported: {note}"
    assert summary.verdict.sentence == (
        "Cannot tell what limits the step. Reason: 64 of 80 launches lack recorded device work."
    )


# -- reports, which only nsys can read

_NSYS = """#!{python}
import pathlib, shutil, sys
assert sys.argv[1:5] == ["export", "--type", "sqlite", "--output"], sys.argv
{action}
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs an `nsys` that does something."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "bin").mkdir()

    def install(action: str) -> None:
        program = tmp_path / "bin" / "nsys"
        program.write_text(_NSYS.format(python=sys.executable, action=action))
        program.chmod(0o755)

    return install


def test_a_report_is_exported_by_nsys(tmp_path: Path, nsys: Callable[[str], None]) -> None:
    database = export(tmp_path / "exported.sqlite", a_loop("step {}"))
    nsys(f"shutil.copy({str(database)!r}, sys.argv[5])")
    (tmp_path / "given").mkdir()
    report = tmp_path / "given" / "run 1.nsys-rep"
    report.write_bytes(b"\x00report")

    trace = opened(report)
    assert rows(trace) == rows(opened(database))
    assert (trace.metadata.source, trace.metadata.format) == (str(report), "Nsight Systems export")
    assert [*report.parent.iterdir()] == [report]
    assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.main
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("", "nsys exported nothing"),
        (
            "sys.exit('Importer error: the report is damaged')",
            "exit code 1: Importer error: the report is damaged",
        ),
        ("import time; time.sleep(60)", "timed out after 1 s"),
        (None, "only nsys can read its reports: where it is installed, run `nsys export --type sqlite FILE`"),
    ],
)
def test_what_nsys_cannot_export(
    action: str | None,
    message: str,
    tmp_path: Path,
    nsys: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if action is not None:
        nsys(action)
    monkeypatch.setattr("stepscope.read.nsys.nsys._TIMEOUT_S", 1 if "sleep" in (action or "") else 600)
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"report")
    with pytest.raises(IngestError, match=message):
        opened(report)
    assert not [*(tmp_path / "temporary").iterdir()]
