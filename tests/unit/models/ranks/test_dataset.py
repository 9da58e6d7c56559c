"""The dataset of a job: sketches and tables of all ranks, kept and queried."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from stepscope.errors import QueryError
from stepscope.faces.terminal.commands import stepscope
from stepscope.models.ranks import sketch_files
from stepscope.models.ranks.dataset import Kept, is_dataset, read_sketches
from stepscope.models.ranks.dataset_query import query_dataset, table_files
from stepscope.models.ranks.files import files_at
from stepscope.models.ranks.hangs import dumps_among
from stepscope.models.ranks.sketch import Sketch


def trace_of(rank: int | None, kernels: int) -> dict[str, object]:
    """Two steps of a rank with some kernels of 10 us in each."""
    events = []
    for step in range(2):
        begin = 1000.0 * step
        main_thread = {"ph": "X", "pid": 1, "tid": 1}
        events.append(
            {
                **main_thread,
                "cat": "user_annotation",
                "name": f"ProfilerStep#{step}",
                "ts": begin,
                "dur": 990.0,
            }
        )
        for row in range(kernels):
            call = 100 * step + row + 1
            at = begin + 20.0 * row + 10
            events += [
                {
                    **main_thread,
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "ts": at,
                    "dur": 2.0,
                    "args": {"correlation": call},
                },
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "gemm",
                    "pid": 0,
                    "tid": 7,
                    "ts": at + 5,
                    "dur": 10.0,
                    "args": {"correlation": call, "device": 0, "stream": 7},
                },
            ]
    known = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 3}}
    return {"traceEvents": events, "deviceProperties": [{"id": 0, "name": "A100"}], **known}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Ranks 0, 1 and 2 on two machines, with 2, 3 and 4 kernels; the last file names no rank."""
    folder = tmp_path / "job"
    for name, rank, kernels in (("a/x", 0, 2), ("a/y", 1, 3), ("b/z", None, 4)):
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(trace_of(rank, kernels)))
    return folder


def rows(dataset: Path, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in query_dataset(dataset, sql).to_pylist()]


def test_the_tables_of_all_ranks_are_one_table(job: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    sketch_files(files_at(job), dataset, tables=True)
    kernels = "select rank, count(*) from events where category = 'kernel' group by 1 order by 1"
    assert rows(dataset, kernels) == [(0, 4), (1, 6), (2, 8)]
    steps = "select rank, count(*) from steps where rank > 0 group by 1 order by 1"
    assert rows(dataset, steps) == [(1, 2), (2, 2)]
    joined = """select e.rank, count(*) from events e join launches l
                on e.rank = l.rank and e.id = l.device_event group by 1 order by 1"""
    assert rows(dataset, joined) == [(0, 4), (1, 6), (2, 8)]


def test_sketches_are_tables_too(job: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    sketch_files(files_at(job), dataset)
    assert rows(dataset, "select rank, node from ranks") == [(0, "a"), (1, "a"), (2, "b")]
    work = "select distinct rank, step from rank_work where stage = 'step' order by all"
    assert rows(dataset, work) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert table_files(dataset) == {}
    with pytest.raises(QueryError, match="--tables"):
        query_dataset(dataset, "select * from events")


def test_only_missing_tables_are_written(job: Path, tmp_path: Path) -> None:
    dataset, files = tmp_path / "dataset", files_at(job)
    sketch_files(files, dataset)
    done: list[str] = []
    sketch_files(files, dataset, finished=done.append, tables=True)
    assert len(done) == 3
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*.parquet")}
    sketch_files(files, dataset, finished=done.append, tables=True)
    assert len(done) == 3
    assert before == {path: path.stat().st_mtime_ns for path in dataset.rglob("*.parquet")}


def test_no_file_outside_of_the_dataset_can_be_read(job: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    sketch_files(files_at(job), dataset, tables=True)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with pytest.raises(QueryError, match="Permission"):
        query_dataset(dataset, f"select * from read_csv('{tmp_path / 'secret.csv'}')")


def test_the_name_of_a_file_is_no_sql(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tmp_path / "dataset"
    sketch_files(files_at(job), dataset, tables=True)
    (steps,) = (dataset / "rank=0").glob("steps-*.parquet")
    monkeypatch.chdir(dataset)  # where a query may write
    steps.with_name("x as select 1; copy (select 1) to 'written.csv' -- -1.parquet").hardlink_to(steps)
    steps.with_name("my own 2-1.parquet").hardlink_to(steps)
    assert rows(dataset, "select count(*) from steps where rank = 0") == [(2,)]
    assert not Path("written.csv").exists()


def test_query_takes_a_dataset(job: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    made = CliRunner().invoke(stepscope, ["ranks", str(job), "-o", str(dataset), "--tables", "--json"])
    assert made.exit_code == 0, made.output
    assert is_dataset(dataset)
    answer = CliRunner().invoke(stepscope, ["query", str(dataset), "show tables", "--json"])
    assert {"events", "steps", "ranks", "rank_work", "rank_calls"} <= {
        row["name"] for row in json.loads(answer.output)
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "8000"], "--port needs --view"),
        (["--no-browser"], "--no-browser needs --view"),
        (["--tables"], "--tables needs -o"),
    ],
)
def test_options_that_would_do_nothing_are_refused(job: Path, arguments: list[str], message: str) -> None:
    answer = CliRunner().invoke(stepscope, ["ranks", str(job), *arguments])
    assert (answer.exit_code, message in answer.output) == (2, True)


@pytest.mark.main
@pytest.mark.parametrize(
    "damage",
    [
        lambda sketch: replace(sketch, calls=replace(sketch.calls, passes=zlib.compress(bytes(1 << 28)))),
        lambda sketch: replace(sketch, calls=replace(sketch.calls, packed=b"no numbers")),
        lambda sketch: replace(sketch, calls=replace(sketch.calls, packed=zlib.compress(bytes(81)))),
        lambda sketch: replace(sketch, calls=replace(sketch.calls, packed=zlib.compress(b"\1" * 80))),
        lambda sketch: replace(sketch, length=sketch.length[:1]),
        lambda sketch: replace(sketch, waiting=[float("nan"), 1.0]),
        lambda sketch: replace(sketch, kernel_steps=zlib.compress(bytes(6))),
        lambda sketch: replace(sketch, rank=1 << 40),
    ],
)
def test_a_damaged_sketch_is_made_again(
    damage: Callable[[Sketch], Sketch], job: Path, tmp_path: Path
) -> None:
    dataset, files = tmp_path / "dataset", files_at(job)
    sketch_files(files, dataset)
    kept = read_sketches(dataset)
    for path in dataset.rglob("*.msgpack"):
        one = msgspec.msgpack.decode(path.read_bytes(), type=Kept)
        path.write_bytes(msgspec.msgpack.encode(replace(one, sketch=damage(one.sketch))))
    assert not read_sketches(dataset)
    done: list[str] = []
    sketch_files(files, dataset, finished=done.append)
    assert len(done) == 3
    assert read_sketches(dataset) == kept


def test_traces_whose_head_lists_process_groups_are_no_dumps_of_the_flight_recorder(job: Path) -> None:
    """As PyTorch writes them since 2.5; of one device, the list is in the first 4 kB."""
    paths = sorted(job.rglob("*.json"))
    for rank, path in enumerate(paths):
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2]}]
        known = {"backend": "nccl", "rank": rank, "world_size": 3, "pg_config": groups}
        path.write_text(json.dumps({"distributedInfo": known, **trace_of(None, 2)}))
    assert dumps_among(paths) == []
    assert CliRunner().invoke(stepscope, ["ranks", str(job), "--json"]).exit_code == 0
