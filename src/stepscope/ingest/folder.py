"""A folder of ranks: one file for each process of a distributed job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from stepscope.errors import IngestError
from stepscope.ingest import is_trace
from stepscope.trace.trace import Metadata

_IN_NAME = re.compile(r"(?<![a-z])(?:rank|worker|process|proc|gpu)[-_.=]?(\d+)", re.IGNORECASE)
Warning_ = tuple[str, str, int]


def trace_files(folder: Path) -> tuple[list[Path], list[Warning_]]:
    """The files of a folder (not of those inside it) that can be read, in natural order of name.

    Returns:
        The files, and a warning about those of other kinds.

    Raises:
        IngestError: if there is none.
    """
    try:
        found = [path for path in folder.iterdir() if path.is_file() and path.name[:1] != "."]
    except OSError as error:
        raise IngestError(
            f"{folder}: expected a folder that can be listed: {error.strerror}"
        ) from error
    files = sorted(filter(is_trace, found), key=lambda path: _natural(path.name))
    if not files:
        raise IngestError(
            f"{folder}: expected a .stepscope or .json(.gz) file for each rank, found none in "
            f"{len(found)} files; folders inside are not searched"
        )
    others = sorted({path.name for path in found} - {path.name for path in files})
    message = f"files of other kinds are not read: {_shown(others)}"
    return files, [("other_file", message, len(others))] if others else []


def _natural(name: str) -> list[int | str]:
    """A key that puts rank10 after rank9; text and numbers alternate, so they never meet."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


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
            warnings.append(_renumbered(path, rank, given))
            rank = given
        ranks.append(rank)
    return ranks, warnings + _missing(ranks, max(one.world_size for one in metadata))


def _rank(path: Path, metadata: Metadata) -> int | None:
    if metadata.capture or isinstance(metadata.properties.get("distributedInfo"), Mapping):
        return metadata.ranks[0]
    found = _IN_NAME.search(path.name)
    return int(found[1]) if found else None


def _renumbered(path: Path, rank: int | None, given: int) -> Warning_:
    if rank is None:
        told = "tells no rank, in the file or in its name"
        return "rank_untold", f"{path.name} {told}; numbered {given}", 1
    return "rank_twice", f"{path.name} is of rank {rank}, as another file is; numbered {given}", 1


def _missing(ranks: Sequence[int], world_size: int) -> list[Warning_]:
    missing = sorted(set(range(max(world_size, max(ranks) + 1))) - set(ranks))
    if not missing:
        return []
    message = f"no file is of rank {_shown(missing)} of {len(ranks) + len(missing)}"
    return [("rank_missing", message, len(missing))]


def _shown(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:8])) + (", …" if len(things) > 8 else "")
