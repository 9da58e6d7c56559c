"""What a sketch keeps of kernels, modules and memory, and that it stays small whatever there is."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope as command
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.modules.costs import subtree_totals
from stepscope.models.ranks import Sketch, sketch_files, sketch_of
from stepscope.models.ranks.calls import CallColumns, CallKind, Calls
from stepscope.models.ranks.dataset_query import query_dataset
from stepscope.models.ranks.sketch import within_limit
from stepscope.testing import drawn_trace
from stepscope.trace.schema import STAGES

MB = 1_000_000


def drawn_steps(durations: list[int]) -> str:
    """Steps of 1 ms with a kernel of each length, launched by a layer of a model."""
    lines = []
    for step, duration in enumerate(durations):
        at = 1000 * step
        lines += [
            f"main | {at} {at + 1000} | ProfilerStep#{step}",
            f"main | {at + 10} {at + 90} | nn.Module: Net_0",
            f"main | {at + 20} {at + 80} | nn.Module: Linear_0",
            f"main | {at + 30} {at + 70} | aten::mm | seq={step}",
            f"main | {at + 40} {at + 50} | cudaLaunchKernel | corr={step + 1}",
            f"stream 7 | {at + 100} {at + 100 + duration} | sgemm | corr={step + 1}",
        ]
    return "\n".join(lines)


def test_kernels_and_modules_have_their_quantiles() -> None:
    sketch = sketch_of(annotate(drawn_trace(drawn_steps([100 * n for n in (5, 1, 3, 2, 4)]))))
    assert sketch.kernels == {"sgemm": (1.0, 0.3)}
    assert sketch.kernel_spread == [(0.1, 0.5)]
    of_each = (0.14, 0.3, 0.46)  # between 0.1 and 0.2, and between 0.4 and 0.5
    assert list(sketch.modules.values()) == [of_each, of_each]
    outer, inner = sketch.modules
    assert inner.startswith(outer)


def test_a_module_counts_what_is_inside_it() -> None:
    own = np.array([[1.0], [10.0], [100.0], [1000.0]])
    parent = np.array([2, 0, -1, 2])  # a chain of three, and a second child
    assert subtree_totals(own, parent).ravel().tolist() == [11, 10, 1111, 1000]


def write_rank(folder: Path, rank: int, peak: int | None) -> Path:
    """Two steps on a CPU; memory is recorded if there is a peak."""
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1000 * step + at, "dur": length}
        for step in range(2)
        for category, name, at, length in (
            ("user_annotation", f"ProfilerStep#{step}", 0, 990),
            ("cpu_op", "aten::mm", 100, 800),
        )
    ]
    memory = {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": 512}
    for total in () if peak is None else (peak // 2, peak, peak // 3):
        arguments = {**memory, "Total Allocated": total, "Total Reserved": 2 * total}
        events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": 300,
                "args": arguments,
            }
        )
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}))
    return path


def test_the_peak_of_memory_is_in_the_sketch_the_report_and_the_tables(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    files = [write_rank(job, 0, 30 * MB), write_rank(job, 1, None)]
    known, unknown = (one.sketch for one in sketch_files(files, tmp_path / "dataset"))
    assert known
    assert unknown
    assert known.peak_memory == {"cuda:0": 30 * MB}
    assert (known.peak_bytes, unknown.peak_bytes) == (30 * MB, None)
    rows = json.loads(CliRunner().invoke(command, ["ranks", str(job), "--json"]).stdout)["rows"]
    assert [row["peak_memory_bytes"] for row in rows] == [30 * MB, None]
    table = query_dataset(tmp_path / "dataset", "select rank, peak_memory_bytes from ranks")
    assert table.to_pydict() == {"rank": [0, 1], "peak_memory_bytes": [30 * MB, None]}
    text = CliRunner().invoke(command, ["ranks", str(job)]).stdout
    assert "peak memory" in text
    assert "30.0 MB" in text


def test_kernels_and_modules_are_tables(tmp_path: Path) -> None:
    files = [write_rank(tmp_path, rank, None) for rank in range(2)]
    sketch_files(files, tmp_path / "dataset")
    kernels = query_dataset(
        tmp_path / "dataset", "select rank, name, per_step, p50_ms from rank_kernels order by 1"
    )
    assert [tuple(row.values()) for row in kernels.to_pylist()] == [
        (0, "aten::mm", 1.0, 0.8),
        (1, "aten::mm", 1.0, 0.8),
    ]
    modules = query_dataset(tmp_path / "dataset", "select * from rank_modules")
    assert modules.column_names == ["rank", "path", "p10_ms", "p50_ms", "p90_ms"]


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_sketch_is_below_100_kb(seed: int) -> None:
    """Everything that a sketch may hold, as much as it may hold, of no regularity."""
    dice = np.random.default_rng(seed)
    steps, calls = 200, 1200

    def times(count: int = steps) -> list[float]:
        return dice.uniform(1, 999, count).round(4).tolist()

    def name(row: int) -> str:
        return f"{row:03}" + "".join(map(chr, dice.integers(97, 123, 117)))

    when = np.sort(dice.integers(0, 10**11, calls))
    columns = CallColumns(
        kind=dice.integers(0, 100, calls),
        step=np.arange(calls) * steps // calls,
        start_ns=when,
        duration_ns=dice.integers(0, 10**7, calls),
        arrival_ns=dice.integers(0, 10**9, calls),
        waited_ns=dice.integers(0, 10**9, calls),
        sent=dice.integers(0, 10**8, calls),
        received=dice.integers(0, 10**8, calls),
        place=dice.integers(0, 100, calls),
        stream=dice.integers(0, 8, calls),
    )
    kinds = [CallKind("allreduce", name(row)[:60], name(row)[:60], 8) for row in range(100)]
    packed = Calls(kinds, [name(row) for row in range(100)], 10**18, [10**9] * steps, columns.pack())
    sketch = Sketch(
        rank=1,
        node="node",
        device="device",
        steps=list(range(steps)),
        length=times(),
        work={stage: times() for stage in STAGES},
        waiting=times(),
        has_device=True,
        kernels={name(row): (123.456, 1.234567) for row in range(100)},
        kernel_steps=dice.bytes(24 * steps * 2),
        calls=packed,
        kernel_spread=[(1.2, 3.4)] * 100,
        modules={name(row): (1.1, 2.2, 3.3) for row in range(40)},
        peak_memory={"cuda:0": 10**11},
    )
    kept = within_limit(sketch)
    assert len(msgspec.msgpack.encode(kept)) <= 100_000
    assert msgspec.structs.replace(kept, calls=packed) == sketch
    left, every = kept.calls.columns(), packed.columns()
    steps = np.unique(left.step)
    assert len(steps) > 1
    assert np.unique(np.diff(steps)).tolist() == [steps[1]]
    rows = np.isin(every.step, steps)
    assert left.arrival_ns.tolist() == every.arrival_ns[rows].tolist()
    assert [kept.calls.kinds[row] for row in left.kind.tolist()] == [
        kinds[row] for row in every.kind[rows].tolist()
    ]
    assert [kept.calls.places[row] for row in left.place.tolist()] == [
        packed.places[row] for row in every.place[rows].tolist()
    ]


def test_a_sketch_of_usual_size_keeps_all_its_calls() -> None:
    sketch = sketch_of(annotate(drawn_trace(drawn_steps([100, 200]))))
    assert within_limit(sketch) is sketch
