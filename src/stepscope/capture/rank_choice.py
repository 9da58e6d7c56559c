"""Which ranks of a job to record."""

from __future__ import annotations

import os
import re

from stepscope.capture.output_path import Rank
from stepscope.errors import CaptureError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def chosen_ranks(text: str, rank: Rank) -> set[int]:
    """The ranks that `--ranks` names.

    Args:
        text: numbers, ranges such as `0-7`, `first-of-node`, `last` and `all`, with commas.
        rank: of this process, which knows the size of the job.

    Raises:
        CaptureError: if a part is none of these, or no rank of this job.

    Example:
        >>> sorted(chosen_ranks("0, 4-6,last", Rank(3, 16)))
        [0, 4, 5, 6, 15]
    """
    return set().union(*(_ranks(part.strip(), rank.world_size) for part in text.split(",")))


def _ranks(part: str, count: int) -> range:
    if part == "all":
        return range(count)
    if part == "last":
        return range(count - 1, count)
    if part == "first-of-node":
        return range(0, count, _ranks_per_node())
    found = _RANGE.fullmatch(part)
    if not found:
        raise CaptureError(
            f"--ranks: expected numbers, ranges such as 0-7, first-of-node, last or all; "
            f"found {part!r}"
        )
    first, last = int(found[1]), int(found[2] or found[1])
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
