"""A folder with one file per rank of a distributed job."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from stepscope.errors import IngestError
from stepscope.read import is_trace
from stepscope.read.shared import MOST_RANKS
from stepscope.trace.trace import Metadata, WarningRow

_RANK = re.compile(r"(?i)(?<![a-z])(?<!local.)rank[-_.=]?(\d+)")
_OTHERWISE = re.compile(r"(?i)(?<![a-z])(?:rank|worker|process|proc|gpu)[-_.=]?(\d+)")  # in names without one
_RUNS = "plugins/profile/*"
_PROFILE, _ENDING = ".xplane.pb", re.compile(r"(\.xplane\.pb|(\.trace)?\.json)(\.gz)?$")
_DIGITS = 18  # of a number in a name, the last ones: more do not fit 64 bits
_SHOWN = 8  # names or ranks in a warning


def trace_files(folder: Path) -> tuple[list[Path], list[WarningRow]]:
    """The readable files of a folder, in natural order of their names, and warnings about others.

    If it has none itself, these are the files of the folders in it, one per machine. For a folder
    that the profiler of JAX or TensorFlow wrote, or TensorBoard's logs, they are those of its last
    run, of all its machines. Raises IngestError if there is none.
    """
    try:
        runs, warnings = _last_run(folder)
        folders = runs or [folder]
        visible = _visible(path for one in folders for path in one.iterdir())
        readable = list(filter(is_trace, visible))
        if not readable:
            visible += _visible(path for one in folders for path in one.glob("*/*"))
            readable = list(filter(is_trace, visible))
        beside = list(filter(is_trace, _visible(folder.iterdir()))) if runs else []
    except OSError as error:
        raise IngestError(f"{folder}: cannot list the folder: {error.strerror}") from error
    readable.sort(key=lambda path: natural(str(path)))
    profiles = [path for path in readable if _PROFILE in path.name]
    files = profiles or readable
    if not files:
        what = f"none of its {len(visible)} files is a trace" if visible else "the folder has no files"
        raise IngestError(
            f"{folder}: {what}; expected one .stepscope, .json(.gz), .xplane.pb or .sqlite file "
            "per rank, there or in one folder per machine"
        )
    known = {*map(_host, profiles), *((path.parent, "perfetto_trace") for path in profiles)}
    left_out = beside + [path for path in readable if known and _host(path) not in known]
    message = "skipped traces beside the profile; to read one, give it alone"
    warnings += skipped("other_trace", message, (path.name for path in left_out))
    no_traces = sorted({path.name for path in visible} - {path.name for path in readable})
    return files, warnings + skipped("other_file", "skipped files that are not traces", no_traces)


def _visible(paths: Iterable[Path]) -> list[Path]:
    """The files that are not hidden, nor in a hidden folder below."""
    return [path for path in paths if path.is_file() and path.name[:1] != "." and path.parent.name[:1] != "."]


def _host(path: Path) -> tuple[Path, str]:
    """The folder of a profile, and the host; JAX writes part of it as JSON beside it, under that name."""
    return path.parent, _ENDING.sub("", path.name)


def skipped(code: str, message: str, files: Iterable[str]) -> list[WarningRow]:
    """A warning that names files; none if there are none."""
    names = list(files)
    return [(code, f"{message}: {shown(names)}", len(names))] if names else []


def _last_run(folder: Path) -> tuple[list[Path], list[WarningRow]]:
    """The folders of the last run, one of each machine: JAX and TensorFlow name them by the date."""
    runs = _folders(folder, _RUNS)
    if not runs and not any(map(is_trace, _visible(folder.iterdir()))):
        runs = _folders(folder, f"*/{_RUNS}")  # TensorBoard's logs: a folder for training
    names = sorted({run.name for run in runs})
    if not runs:
        return [], []
    message = (
        f"the folder holds {len(names)} runs; the last is read, {names[-1]}; to read another, give its folder"
    )
    last = [run for run in runs if run.name == names[-1]]
    return last, [("other_run", message, len(names) - 1)] if names[:-1] else []


def _folders(folder: Path, pattern: str) -> list[Path]:
    return sorted(filter(Path.is_dir, folder.glob(pattern)), key=lambda path: path.name)


def natural(text: str) -> list[int | str]:
    """A key that sorts rank10 after rank9; text and numbers alternate, so they never compare."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d{1,18})", text)]


def number_ranks(files: Sequence[Path], metadata: Sequence[Metadata]) -> tuple[list[int], list[WarningRow]]:
    """The rank of each file: as recorded, else from its name, else the next free number.

    They are distinct; warnings tell of duplicate, unknown and missing ranks.
    """
    named = [rank_of(path, facts) for path, facts in zip(files, metadata, strict=True)]
    ranks, warnings = distinct_ranks(files, named)
    return ranks, warnings + _missing(ranks, max(facts.world_size for facts in metadata))


def distinct_ranks(files: Sequence[Path], named: Sequence[int | None]) -> tuple[list[int], list[WarningRow]]:
    """A distinct rank for each file: the known one, else the next free number; and warnings."""
    taken = set(named)
    free = (number for number in count() if number not in taken)
    ranks: dict[int, Path] = {}
    unknown: list[str] = []
    twice: list[str] = []
    for path, rank in zip(files, named, strict=True):
        number = next(free) if rank is None or rank in ranks else rank
        if rank is None:
            unknown.append(f"{path.name} as rank {number}")
        elif number != rank:
            twice.append(f"{path.name} (rank {rank}) as rank {number}")
        ranks[number] = path
    return list(ranks), _renumbered(unknown, twice) if len(files) > 1 else []


def rank_of(path: Path, metadata: Metadata) -> int | None:
    """The rank of a file: as recorded, else from its name, else None."""
    if metadata.capture or isinstance(metadata.properties.get("distributedInfo"), Mapping):
        return metadata.ranks[0]
    return named_rank(path)


def named_rank(path: Path) -> int | None:
    """The rank that the name of a file says, else None.

    Example:
        >>> named_rank(Path("job/rank12.json.gz")), named_rank(Path("job/trace.json"))
        (12, None)
    """
    match = _RANK.search(path.name) or _OTHERWISE.search(path.name)
    number = int(match[1][-_DIGITS:]) if match else MOST_RANKS
    return number if number < MOST_RANKS else None  # a date or a time


def _renumbered(unknown: Sequence[str], twice: Sequence[str]) -> list[WarningRow]:
    reasons = [
        ("rank_unknown", "neither name nor content says a rank: shown", unknown),
        ("rank_twice", "of the rank of another file: shown", twice),
    ]
    return [(code, f"{reason} {shown(files)}", len(files)) for code, reason, files in reasons if files]


def _missing(ranks: Sequence[int], world_size: int) -> list[WarningRow]:
    """A warning if the folder has fewer ranks than the job had, as far as is known."""
    present = {rank for rank in ranks if rank >= 0}
    size = max(world_size, max(ranks) + 1)
    if not (missing := size - len(present)):
        return []
    first = islice((rank for rank in range(size) if rank not in present), min(missing, _SHOWN + 1))
    return [("rank_missing", f"no file for rank {shown(list(first))} of {size} ranks", missing)]


def shown(items: Sequence[object]) -> str:
    """The first of them, for a sentence.

    Example:
        >>> shown(range(9))
        '0, 1, 2, 3, 4, 5, 6, 7, …'
    """
    return ", ".join(map(str, items[:_SHOWN])) + (", …" if len(items) > _SHOWN else "")
