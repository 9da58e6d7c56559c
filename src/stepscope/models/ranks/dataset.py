"""A dataset folder: the sketch of each rank, and if wanted its tables, in `rank=N/`."""

import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from stepscope.base.input_files import content_of
from stepscope.base.unfinished_files import unfinished_file
from stepscope.errors import IngestError
from stepscope.models.ranks.files import RankFile
from stepscope.models.ranks.sketch import UNKNOWN_RANK, VERSION, Sketch
from stepscope.trace.trace import Trace

_SKETCHES = "**/rank=*/sketch-*.msgpack"
_LAST_TABLE = "steps"  # written last: where it is, the others are


class Kept(msgspec.Struct, frozen=True):
    """A sketch in a dataset folder, with what its file was like."""

    file: str
    size: int
    version: int
    sketch: Sketch

    def is_current(self, file: RankFile) -> bool:
        """Whether the file has not changed since, nor the format of sketches."""
        same = (file.size, file.version) == (self.size, self.version)
        return same and self.sketch.version == VERSION


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds sketches."""
    return folder.is_dir() and next(folder.glob(_SKETCHES), None) is not None


def read_sketches(dataset: Path) -> dict[str, Kept]:
    """The sketches of a dataset by their files, the newest of each; damaged ones are left out."""
    found: dict[str, Kept] = {}
    for path in sorted(dataset.glob(_SKETCHES), key=lambda path: path.stat().st_mtime_ns):
        with suppress(msgspec.MsgspecError, OSError, ValueError, zlib.error):
            kept = msgspec.msgpack.decode(content_of(path), type=Kept)
            if kept.sketch.version != VERSION or kept.sketch.is_sound:
                found[kept.file] = kept
    return found


def keep_sketch(dataset: Path, file: RankFile, sketch: Sketch) -> None:
    """Write a sketch whole or not at all; ranks may share a folder, files do not share a sketch;
    raises IngestError if it cannot be written."""
    data = msgspec.msgpack.encode(Kept(file.name, file.size, file.version, sketch))
    name = f"sketch-{_id(file.name)}.msgpack"
    _write(_folder(dataset, sketch.rank) / name, lambda path: path.write_bytes(data))


def keep_tables(dataset: Path, file: RankFile, rank: int, trace: Trace) -> None:
    """Write the tables of a trace of one rank as Parquet, without the column of the folder's rank;
    raises IngestError if they cannot be written."""
    from pyarrow import parquet

    for name in sorted(trace.tables, key=lambda name: name == _LAST_TABLE):
        table = trace[name].to_arrow()
        if len(table) or name == _LAST_TABLE:
            rows = table.drop_columns(["rank"]) if "rank" in table.column_names else table
            _write(
                _folder(dataset, rank) / f"{name}-{_id(file.name)}.parquet",
                lambda path, rows=rows: parquet.write_table(rows, path, compression="zstd"),  # type: ignore[misc]
            )


def files_with_tables(dataset: Path, files: Sequence[RankFile]) -> set[RankFile]:
    ids = {path.stem.partition("-")[2] for path in dataset.glob(f"**/rank=*/{_LAST_TABLE}-*.parquet")}
    return {file for file in files if _id(file.name) in ids}


def move_tables(dataset: Path, ranks: dict[str, int]) -> None:
    """Move tables to the folders of their ranks, which may be known only now."""
    folders = {_id(file): _folder(dataset, rank) for file, rank in ranks.items()}
    for path in sorted(dataset.glob("**/rank=*/*.parquet")):
        folder = folders.get(path.stem.rpartition("-")[2])
        if folder is not None and folder.name != path.parent.name:
            folder = path.parent.with_name(folder.name)
            folder.mkdir(exist_ok=True)
            path.replace(folder / path.name)


def _folder(dataset: Path, rank: int) -> Path:
    return dataset / f"rank={'unknown' if rank == UNKNOWN_RANK else rank}"


def _id(file: str) -> str:
    return f"{zlib.crc32(os.fsencode(file)):08x}"


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as name:
            write(name)
            name.replace(path)
    except OSError as error:
        raise IngestError(f"{path.parent}: cannot write {path.name}: {error.strerror}") from error
