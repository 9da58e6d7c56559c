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
from stepscope.ranks.files import RankFile
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
    version: int
    sketch: Sketch


def sketch_files(
    files: Sequence[Path | RankFile],
    dataset: Path | None = None,
    engine: Engine = on_this_machine,
    finished: Callable[[str], None] = lambda file: None,
) -> list[RankResult]:
    """Sketch each file.

    Args:
        files: one for each rank.
        dataset: a folder to keep the sketches in, `rank=N/*.msgpack`; sketches of files that have
            not changed are taken from there, or from its subfolders. Each is written as soon as its
            file is read, so what was interrupted goes on where it stopped.
        engine: where files are read; by default processes of this machine.
        finished: called with each file's path or URL when it is done.

    Returns:
        A result for each file, by rank; files that cannot be read are at the end, with the reason.
    """
    all_files = [RankFile.of(one) if isinstance(one, Path) else one for one in files]
    kept = _read_dataset(dataset) if dataset else {}
    known = {one: kept[one.name] for one in all_files if _is_current(one, kept.get(one.name))}
    left = [one for one in all_files if one not in known]
    above = _above_nodes(all_files)

    def keep(file: RankFile, result: Sketch | IngestError) -> None:
        if dataset and not isinstance(result, IngestError):
            _keep(dataset, file, result)
        finished(file.name)

    made = engine(left, partial(_sketch_file, above), keep) if left else {}
    failed = {file: str(one) for file, one in made.items() if isinstance(one, IngestError)}
    sketches = {file: _on_node(one.sketch, above, file) for file, one in known.items()}
    sketches |= {file: one for file, one in made.items() if not isinstance(one, IngestError)}
    results = _numbered([(file, sketches[file]) for file in all_files if file in sketches])
    return [*results, *(RankResult(file.name, None, error) for file, error in failed.items())]


def _numbered(sketches: Sequence[tuple[RankFile, Sketch]]) -> list[RankResult]:
    """The results by rank; files that name no rank, or one that is taken, get a free number."""
    from stepscope.ingest.rank_folder import distinct_ranks

    known = [None if one.rank == UNKNOWN_RANK else one.rank for _, one in sketches]
    ranks, _ = distinct_ranks([Path(file.name) for file, _ in sketches], known)
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    return [
        RankResult(
            sketches[row][0].name,
            msgspec.structs.replace(sketches[row][1], rank=ranks[row]),
            renumbered=ranks[row] != known[row],
        )
        for row in order
    ]


def _sketch_file(above: str, file: RankFile) -> Sketch:
    from stepscope.annotate.steps.steps import ranks_with_steps
    from stepscope.ingest.rank_folder import rank_of
    from stepscope.load import open_file

    with file.on_disk() as path:
        trace = open_file(path, None, cache=False)
        if not ranks_with_steps(trace):
            raise IngestError(f"{path}: holds no recorded step")
        rank = rank_of(path, trace.metadata)
        sketch = sketch_of(trace, _node(above, file))
    return msgspec.structs.replace(sketch, rank=UNKNOWN_RANK if rank is None else rank)


def _on_node(sketch: Sketch, above: str, file: RankFile) -> Sketch:
    """The sketch with the machine that its folder names, as it may be known only now."""
    return msgspec.structs.replace(sketch, node=_node(above, file) or sketch.node)


def _node(above: str, file: RankFile) -> str:
    """The machine that a file's folder names; empty if all files are in one folder."""
    return os.path.relpath(file.folder, above) if above else ""


def _above_nodes(files: Sequence[RankFile]) -> str:
    """The folder whose subfolders are machines; empty if all files are in one folder."""
    folders = {file.folder for file in files}
    return os.path.commonpath(folders) if len(folders) > 1 else ""


def _is_current(file: RankFile, kept: _Kept | None) -> bool:
    if kept is None or kept.sketch.version != VERSION:
        return False
    return (file.size, file.version) == (kept.size, kept.version)


def _read_dataset(dataset: Path) -> dict[str, _Kept]:
    """The sketches of a dataset by their files, the newest of each; damaged ones are made again."""
    found: dict[str, _Kept] = {}
    for path in sorted(dataset.glob("**/rank=*/*.msgpack"), key=_modified):
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except (msgspec.MsgspecError, OSError):
            continue
        found[kept.file] = kept
    return found


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns


def _keep(dataset: Path, file: RankFile, sketch: Sketch) -> None:
    """Write a sketch whole or not at all; ranks may share a folder, files do not share a sketch."""
    folder = dataset / f"rank={'unknown' if sketch.rank == UNKNOWN_RANK else sketch.rank}"
    path = folder / f"sketch-{crc32(os.fsencode(file.name)):08x}.msgpack"
    unfinished = folder / f".{path.name}.{os.getpid()}"
    data = msgspec.msgpack.encode(_Kept(file.name, file.size, file.version, sketch))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise IngestError(f"{folder}: cannot write the sketch: {error.strerror}") from error
