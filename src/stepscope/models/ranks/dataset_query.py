"""SQL over a dataset folder: the tables of all ranks, read lazily, and what their sketches say."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.errors import QueryError
from stepscope.models.ranks.dataset import read_sketches
from stepscope.models.ranks.map_ranks import numbered
from stepscope.models.ranks.sketch import Sketch
from stepscope.trace.query import answer_of, named_tables
from stepscope.trace.schema import SCHEMAS

Sketched = tuple[str, Sketch]
"""A file and its sketch."""
_LISTING = "show"
_MEMORY = "2GB"  # DuckDB's; what needs more goes to a temporary folder


def query_dataset(dataset: Path, sql: str) -> pa.Table:
    """The result of SQL over the ranks of a dataset.

    Each table of the traces (`ranks --tables`) has a column `rank` in front; files are read as far
    as the query needs them. `ranks`, `rank_work`, `rank_calls`, `rank_kernels` and
    `rank_modules` come from the sketches. The numbers of rows (`id`, `track`, …) are those of one
    rank, so tables are joined by `rank`, too.

    Raises:
        QueryError: if the SQL is wrong.
    """
    folder = dataset.resolve()
    paths = table_files(folder)

    def register(connection: Any) -> None:
        shown = _FROM_SKETCHES if _LISTING in sql.lower() else named_tables(connection, sql)
        for name in sorted(_FROM_SKETCHES.keys() & set(shown)):
            connection.register(name, _FROM_SKETCHES[name](_sketches(folder)))
        connection.execute(f"set allowed_directories = [{_quoted(str(folder))}]")
        connection.execute("set enable_external_access = false")
        for name, files in paths.items():
            listed = ", ".join(_quoted(str(path)) for path in files)
            connection.execute(
                f"create view {name} as select rank, * exclude (rank) from read_parquet([{listed}],"
                " hive_partitioning = true, hive_types = {'rank': INTEGER}, union_by_name = false)"
            )

    with TemporaryDirectory(prefix="stepscope-query-") as spilled:
        try:
            return answer_of(sql, register, {"memory_limit": _MEMORY, "temp_directory": spilled})
        except QueryError as error:
            if paths:
                raise
            raise QueryError(
                f"{error}\n{dataset} holds sketches only; for the tables of each rank use: "
                "stepscope ranks JOB -o DATASET --tables"
            ) from error


def table_files(dataset: Path) -> dict[str, list[Path]]:
    """The Parquet files of each table, one for each rank; others' names are not to become SQL."""
    found: dict[str, list[Path]] = {}
    for path in sorted(dataset.glob("**/rank=*/*.parquet")):
        if path.parent.name != "rank=unknown" and (name := path.stem.rpartition("-")[0]) in SCHEMAS:
            found.setdefault(name, []).append(path)
    return found


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sketches(dataset: Path) -> list[Sketched]:
    """The file and the sketch of each rank, numbered as in the report."""
    kept = sorted(read_sketches(dataset).values(), key=lambda kept: kept.file)
    ranks = numbered([(sketch.file, sketch.sketch) for sketch in kept])
    return [(rank.file, rank.sketch) for rank in ranks if rank.sketch]


def _ranks(ranks: Sequence[Sketched]) -> pa.Table:
    return _table(
        {
            "rank": pa.int32(),
            "node": pa.string(),
            "device": pa.string(),
            "file": pa.string(),
            "begin_ns": pa.int64(),
            "peak_memory_bytes": pa.int64(),
        },
        [(one.rank, one.node, one.device, file, one.calls.begin_ns, one.peak_bytes) for file, one in ranks],
    )


def _work(ranks: Sequence[Sketched]) -> pa.Table:
    """Own work by rank, step and stage; `waiting` and the length of the step, too."""
    rows = [
        (one.rank, step, stage, values[place])
        for _, one in ranks
        for stage, values in {**one.work, "waiting": one.waiting, "step": one.length}.items()
        for place, step in enumerate(one.steps)
    ]
    columns = {"rank": pa.int32(), "step": pa.int64(), "stage": pa.string(), "ms": pa.float64()}
    return _table(columns, rows)


def _kernels(ranks: Sequence[Sketched]) -> pa.Table:
    """The longest kernels of each rank: calls per step, and quantiles of their durations."""
    rows = [
        (one.rank, name, count, low, median, high)
        for _, one in ranks
        for (name, (count, median)), (low, high) in zip(one.kernels.items(), one.kernel_spread, strict=True)
    ]
    return _table({**_NAMED, "per_step": pa.float64(), **_QUANTILES}, rows)


def _modules(ranks: Sequence[Sketched]) -> pa.Table:
    """The longest modules of each rank: the time of a step that 10, 50 and 90 % are below."""
    rows = [(one.rank, path, *times) for _, one in ranks for path, times in one.modules.items()]
    return _table({"rank": pa.int32(), "path": pa.string(), **_QUANTILES}, rows)


def _calls_of(sketch: Sketch) -> pa.Table:
    columns = sketch.calls.columns()
    kinds = [sketch.calls.kinds[row] for row in columns.kind.tolist()]
    return pa.table(
        {
            "rank": pa.array(np.full(len(kinds), sketch.rank), pa.int32()),
            "step": pa.array(np.array(sketch.steps or [0])[columns.step], pa.int64()),
            "kind": pa.array([one.kind for one in kinds], pa.string()),
            "process_group": pa.array([one.group for one in kinds], pa.string()),
            "ranks": pa.array([one.ranks for one in kinds], pa.string()),
            **{
                name: pa.array(getattr(columns, name), pa.int64())
                for name in ("start_ns", "duration_ns", "sent", "received")
            },
        }
    )


def _table(columns: Mapping[str, pa.DataType], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [pa.array(one, kind) for one, kind in zip(values, columns.values(), strict=True)]
    return pa.table(arrays, list(columns))


_NAMED = {"rank": pa.int32(), "name": pa.string()}
_QUANTILES = {name: pa.float64() for name in ("p10_ms", "p50_ms", "p90_ms")}
_FROM_SKETCHES: dict[str, Callable[[Sequence[Sketched]], pa.Table]] = {
    "ranks": _ranks,
    "rank_work": _work,
    "rank_calls": lambda ranks: pa.concat_tables([_calls_of(one) for _, one in ranks]),
    "rank_kernels": _kernels,
    "rank_modules": _modules,
}
