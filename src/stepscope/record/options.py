"""What `stepscope run` was asked for: what to record, of which ranks, and into which file."""

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import CaptureError


@dataclass(frozen=True)
class RecordOptions:
    """What to record of a run; the first five as in `stepscope.profile`."""

    warmup: int = 5
    steps: int = 3
    memory: bool = False
    shapes: bool = True
    stack: bool = False
    step_every: int = 1  # a step is this many optimizer steps, or iterations, in a row
    from_optimizer: int = 1  # counted from 1, the first optimizer whose steps count
    recorder_memory: int = 0  # MB that recorded events may take; 0 for half of what is available


SUFFIX = ".stepscope"
# Variables with a rank and the number of ranks: of torchrun and most launchers; Open MPI; MPICH and Intel
# MPI; MVAPICH; srun, by which mpirun starts its own helpers. SLURM's batch scripts have a rank as well.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    *((f"{mpi}_RANK", f"{mpi}_SIZE") for mpi in ("OMPI_COMM_WORLD", "PMI", "MV2_COMM_WORLD")),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Launchers that such a task may start, and Ray's workers: several processes in one task.
_NESTED = re.compile(
    r"^\S+ (-\S+ )*(\S*/)?(torchrun|deepspeed|accelerate(\.commands\.launch)?"
    r"|torch\.distributed\.(run|launch)|ray/_private/\S+)( |$)"
)


@dataclass(frozen=True)
class Rank:
    """One process of a distributed run, as its launcher reports it."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> "Rank":
        """As torchrun reports it, else its process group, else another launcher; alone without these."""
        of_torchrun, *of_others = map(_reported, _LAUNCHERS)
        found = [of_torchrun, _of_group(), *([] if _NESTED.match(" ".join(sys.orig_argv)) else of_others)]
        return next((rank for rank in found if 0 <= rank.rank < rank.world_size > 1), cls())


def _reported(names: tuple[str, str]) -> Rank:
    with suppress(KeyError, ValueError):
        return Rank(*(int(os.environ[name]) for name in names))
    return Rank()


def _of_group() -> Rank:
    distributed: Any = sys.modules.get("torch.distributed")
    exists = distributed and distributed.is_available() and distributed.is_initialized()
    return Rank(distributed.get_rank(), distributed.get_world_size()) if exists else Rank()


def target_path(output: str | Path | None, name: str, rank: Rank, suffix: str = SUFFIX) -> Path:
    """The absolute path of the file, `output` or one named after the script, in this folder.

    Of several ranks, each writes its own file into a folder.
    """
    path = Path(output or name + suffix).absolute()
    if rank.world_size > 1:
        return path.with_name(path.name.removesuffix(suffix)) / f"rank{rank.rank}{suffix}"
    return path


def shown(path: Path) -> str:
    """Relative to the current folder where the path is below it."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def script_name() -> str:
    """The name by which captures of this process go; a notebook or prompt has no script."""
    return Path(sys.argv[0] if sys.argv else "").stem or "capture"


def belongs_to_parent(variable: str) -> bool:
    """Whether what the environment asks for is a parent process's; else it is this one's from now on.

    Children inherit `variable` with the owner's process id.
    """
    return os.environ.setdefault(variable, str(os.getpid())) != str(os.getpid())


_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def chosen_ranks(text: str, rank: Rank) -> set[int]:
    """The ranks that `--ranks` names: numbers, ranges, `first-of-node`, `last` and `all`, with commas.

    Raises CaptureError if a part is none of these, or no rank of the job of this `rank`.
    """
    return set().union(*(_ranks(part.strip(), rank.world_size) for part in text.split(",")))


def _ranks(part: str, count: int) -> range:
    if part == "all":
        return range(count)
    if part == "last":
        return range(count - 1, count)
    if part == "first-of-node":
        return range(0, count, _ranks_per_node())
    match = _RANGE.fullmatch(part)
    if not match:
        raise CaptureError(
            f"--ranks: expected numbers, ranges such as 0-7, first-of-node, last or all; found {part!r}"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last or last >= count:
        raise CaptureError(f"--ranks: {part} is not in this job; its ranks are 0 to {count - 1}")
    return range(first, last + 1)


def _ranks_per_node() -> int:
    """How many ranks a machine has, as torchrun says it."""
    try:
        return max(int(os.environ.get("LOCAL_WORLD_SIZE", "")), 1)
    except ValueError:
        raise CaptureError(
            "--ranks first-of-node: the launcher does not set LOCAL_WORLD_SIZE; "
            "torchrun does, or name the ranks by number"
        ) from None
