"""Sketches of many files, each a function of its file alone; the sketches may be kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import msgspec

from stepscope.errors import IngestError
from stepscope.ranks.engines import Engine, on_this_machine
from stepscope.ranks.sketch import UNKNOWN_RANK, VERSION, Sketch, sketch_of


@dataclass(frozen=True)
class RankResult:
    """What became of one file: its sketch, or why it could not be read.

    `renumbered` is true where the file names no rank, or one that another file has.
    """

    file: str
    sketch: Sketch | None
    error: str = ""
    renumbered: bool = False


class _Kept(msgspec.Struct, frozen=True):
    """A sketch in a dataset folder, with what its file was like."""

    file: str
    size: int
    modified_ns: int
    sketch: Sketch


def sketch_files(
    files: Sequence[Path],
    dataset: Path | None = None,
    engine: Engine = on_this_machine,
    finished: Callable[[Path], None] = lambda file: None,
) -> list[RankResult]:
    """Sketch each file.

    Args:
        files: one for each rank.
        dataset: a folder to keep the sketches in, `rank=N/*.msgpack`; sketches of files that have
            not changed are taken from there, or from its subfolders. Each is written as soon as its
            file is read, so what was interrupted goes on where it stopped.
        engine: where files are read; by default processes of this machine.
        finished: called with each file when it is done.

    Returns:
        A result for each file, by rank; files that cannot be read are at the end, with the reason.
    """
    kept = _read_dataset(dataset) if dataset else {}
    known = {file: kept[str(file)] for file in files if _is_current(file, kept.get(str(file)))}
    left = [file for file in files if file not in known]
    above = _above_nodes(files)

    def keep(file: Path, result: Sketch | IngestError) -> None:
        if dataset and not isinstance(result, IngestError):
            _keep(dataset, file, result)
        finished(file)

    made = engine(left, partial(_sketch_file, above), keep) if left else {}
    failed = {file: str(one) for file, one in made.items() if isinstance(one, IngestError)}
    sketches = {file: _on_node(one.sketch, above, file) for file, one in known.items()}
    sketches |= {file: one for file, one in made.items() if not isinstance(one, IngestError)}
    results = _numbered([(file, sketches[file]) for file in files if file in sketches])
    return [*results, *(RankResult(str(file), None, error) for file, error in failed.items())]


def _numbered(sketches: Sequence[tuple[Path, Sketch]]) -> list[RankResult]:
    """The results by rank; files that name no rank, or one that is taken, get a free number."""
    from stepscope.ingest.rank_folder import distinct_ranks

    known = [None if one.rank == UNKNOWN_RANK else one.rank for _, one in sketches]
    ranks, _ = distinct_ranks([file for file, _ in sketches], known)
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    return [
        RankResult(
            str(sketches[row][0]),
            msgspec.structs.replace(sketches[row][1], rank=ranks[row]),
            renumbered=ranks[row] != known[row],
        )
        for row in order
    ]


def job_files(source: Path) -> list[Path]:
    """The files of a job: of a folder, or of its subfolders, one for each machine.

    Raises:
        IngestError: if there is none.
    """
    from stepscope.ingest import is_trace

    if not source.is_dir():
        raise IngestError(f"{source}: expected a folder with one file per rank")
    found = sorted(path for path in source.rglob("*") if path.is_file() and path.name[:1] != ".")
    files = [path for path in found if is_trace(path)]
    if not files:
        raise IngestError(f"{source}: holds no trace; expected one file per rank")
    return files


def _sketch_file(above: Path | None, file: Path) -> Sketch:
    from stepscope.annotate.steps.steps import ranks_with_steps
    from stepscope.ingest.rank_folder import rank_of
    from stepscope.load import open_file

    trace = open_file(file, None, cache=False)
    if not ranks_with_steps(trace):
        raise IngestError(f"{file}: holds no recorded step")
    rank = rank_of(file, trace.metadata)
    sketch = sketch_of(trace, str(file.parent.relative_to(above)) if above else "")
    return msgspec.structs.replace(sketch, rank=UNKNOWN_RANK if rank is None else rank)


def _on_node(sketch: Sketch, above: Path | None, file: Path) -> Sketch:
    """The sketch with the machine that its folder names, as it may be known only now."""
    if above is None:
        return sketch
    return msgspec.structs.replace(sketch, node=str(file.parent.relative_to(above)))


def _above_nodes(files: Sequence[Path]) -> Path | None:
    """The folder whose subfolders are machines; None if all files are in one folder."""
    folders = {file.parent for file in files}
    return Path(os.path.commonpath(folders)) if len(folders) > 1 else None


def _is_current(file: Path, kept: _Kept | None) -> bool:
    if kept is None or kept.sketch.version != VERSION:
        return False
    state = file.stat()
    return (state.st_size, state.st_mtime_ns) == (kept.size, kept.modified_ns)


def _read_dataset(dataset: Path) -> dict[str, _Kept]:
    """The sketches of a dataset by their files; damaged ones are made again."""
    found: dict[str, _Kept] = {}
    for path in sorted(dataset.glob("**/rank=*/*.msgpack")):
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except (msgspec.MsgspecError, OSError):
            continue
        if kept.modified_ns >= (found[kept.file].modified_ns if kept.file in found else 0):
            found[kept.file] = kept
    return found


def _keep(dataset: Path, file: Path, sketch: Sketch) -> None:
    """Write a sketch whole or not at all; ranks may share a folder, files do not share a sketch."""
    folder = dataset / f"rank={'unknown' if sketch.rank == UNKNOWN_RANK else sketch.rank}"
    path = folder / f"sketch-{crc32(os.fsencode(file)):08x}.msgpack"
    unfinished = folder / f".{path.name}.{os.getpid()}"
    state = file.stat()
    data = msgspec.msgpack.encode(_Kept(str(file), state.st_size, state.st_mtime_ns, sketch))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise IngestError(f"{folder}: cannot write the sketch: {error.strerror}") from error
