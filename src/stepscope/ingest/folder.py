"""A folder of ranks: one file for each process of a distributed job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from stepscope.errors import IngestError
from stepscope.ingest import is_trace
from stepscope.ingest.metadata import MOST_RANKS
from stepscope.trace.trace import Metadata

_IN_NAME = re.compile(r"(?<![a-z])(?:rank|worker|process|proc|gpu)[-_.=]?(\d+)", re.IGNORECASE)
_RUNS = "plugins/profile/*"
_DIGITS = 18
_SHOWN = 8
Warning_ = tuple[str, str, int]


def trace_files(folder: Path) -> tuple[list[Path], list[Warning_]]:
    """The files of a folder (not of those inside it) that can be read, in natural order of name.

    Of a folder that JAX's profiler wrote it is the files of the last run in it.

    Returns:
        The files, and a warning about those of other kinds.

    Raises:
        IngestError: if there is none.
    """
    try:
        folder, warnings = _last_run(folder)
        found = [path for path in folder.iterdir() if path.is_file() and path.name[:1] != "."]
    except OSError as error:
        raise IngestError(
            f"{folder}: expected a folder that can be listed: {error.strerror}"
        ) from error
    readable = sorted(filter(is_trace, found), key=lambda path: _natural(path.name))
    # Beside a profile JAX writes some of the same as JSON.
    files = [path for path in readable if ".xplane.pb" in path.name] or readable
    if not files:
        raise IngestError(
            f"{folder}: expected a .stepscope, .json(.gz) or .xplane.pb file for each rank, found "
            f"none in {len(found)} files; folders inside are not searched"
        )
    others = sorted({path.name for path in found} - {path.name for path in readable})
    message = f"files of other kinds are not read: {_shown(others)}"
    return files, warnings + ([("other_file", message, len(others))] if others else [])


def _last_run(folder: Path) -> tuple[Path, list[Warning_]]:
    """Where the files of the last run are: JAX makes a folder for each, named by its date."""
    runs = sorted(path for path in folder.glob(_RUNS) if path.is_dir())
    if not runs:
        return folder, []
    said = f"the last of {len(runs)} runs is read, {runs[-1].name}; give the folder of another"
    return runs[-1], [("other_run", said, len(runs) - 1)] if runs[:-1] else []


def _natural(name: str) -> list[int | str]:
    """A key that puts rank10 after rank9; text and numbers alternate, so they never meet."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def number_ranks(
    files: Sequence[Path], metadata: Sequence[Metadata]
) -> tuple[list[int], list[Warning_]]:
    """The rank of each file: as recorded, else as its name says, else the next free number.

    Args:
        files: the files of one folder.
        metadata: of each file.

    Returns:
        A rank for each file, all different, and warnings about ranks that are told twice, not at
        all, or are missing.

    Example:
        >>> number_ranks([Path("rank3.json"), Path("rank4.json")], [Metadata()] * 2)[0]
        [3, 4]
    """
    told = [_rank(path, one) for path, one in zip(files, metadata, strict=True)]
    free = (number for number in count() if number not in told)
    ranks: list[int] = []
    warnings: list[Warning_] = []
    for path, rank in zip(files, told, strict=True):
        if rank is None or rank in ranks:
            given = next(free)
            if len(files) > 1:
                warnings.append(_renumbered(path, rank, given))
            rank = given
        ranks.append(rank)
    return ranks, warnings + _missing(ranks, max(one.world_size for one in metadata))


def _rank(path: Path, metadata: Metadata) -> int | None:
    if metadata.capture or isinstance(metadata.properties.get("distributedInfo"), Mapping):
        return metadata.ranks[0]
    found = _IN_NAME.search(path.name)
    number = int(found[1][-_DIGITS:]) if found else MOST_RANKS
    return number if number < MOST_RANKS else None  # a date, or a moment


def _renumbered(path: Path, rank: int | None, given: int) -> Warning_:
    if rank is None:
        told = "tells no rank, in the file or in its name"
        return "rank_untold", f"{path.name} {told}; numbered {given}", 1
    return "rank_twice", f"{path.name} is of rank {rank}, as another file is; numbered {given}", 1


def _missing(ranks: Sequence[int], world_size: int) -> list[Warning_]:
    """A warning where fewer ranks are there than the job had, as far as is known."""
    there = {rank for rank in ranks if rank >= 0}
    size = max(world_size, max(ranks) + 1)
    if not (missing := size - len(there)):
        return []
    first = islice((rank for rank in range(size) if rank not in there), min(missing, _SHOWN + 1))
    return [("rank_missing", f"no file is of rank {_shown(list(first))} of {size}", missing)]


def _shown(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:_SHOWN])) + (", …" if len(things) > _SHOWN else "")
