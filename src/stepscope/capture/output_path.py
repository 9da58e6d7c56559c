"""The path of a capture, and the rank that writes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".stepscope"


@dataclass(frozen=True)
class Rank:
    """One process of a distributed run, as torchrun and similar launchers report it."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> Rank:
        """From RANK and WORLD_SIZE; a single process where they are absent or inconsistent."""
        try:
            found = cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        except (KeyError, ValueError):
            return cls()
        return found if 0 <= found.rank < found.world_size else cls()


def target_path(output: str | Path | None, name: str, rank: Rank) -> Path:
    """The absolute path of the capture file.

    Args:
        output: as the user requested; None for a file named after the script, in this folder.
        name: the script's name without suffix.
        rank: of several ranks, each writes its own file into a folder.
    """
    path = Path(output or name + SUFFIX).absolute()
    if rank.world_size > 1:
        return path.with_name(path.name.removesuffix(SUFFIX)) / f"rank{rank.rank}{SUFFIX}"
    return path
