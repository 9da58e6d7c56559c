"""Operations of the timeline: a step, a stage, a call of a module, an event, or a section."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from stepscope.base.arrays import Ids
from stepscope.errors import TraceError

TINY = 0.05  # of its parent's runtime: an operation that takes less is tiny
_STEP = re.compile(r"s(\d{1,18})\.(\d{1,18})(?:/|$)")


@dataclass(frozen=True)
class Spread:
    """How the operations of a section differ, or the copies of what repeats in it."""

    count: int  # how many there are
    least_ns: int  # runtime of the fastest, on the side that takes longer for all together
    mean_ns: int  # their mean
    most_ns: int  # runtime of the slowest
    slowest: str  # id of the slowest, or of the first operation in it


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation; the level that lists it holds its costs."""

    id: str  # stable for a file, and unique among its siblings
    # trace, step, stage, module, event, section (of tiny operations), series (of those of one name), or
    # repeat (copies of one block or of one pattern)
    kind: str
    name: str  # short
    rows: Ids  # event ids, none inside another, int64; of a step all its events
    context: int = -1  # the module that its inside lies in, -1 for none
    track: int = -1  # the thread or stream that it runs on, -1 for a step
    event: int = -1  # the event that it is, else -1
    module: int = -1  # the module that it is a call of, else -1
    spread: Spread | None = None  # how these differ, of a section, which is a group of operations


class StepId(NamedTuple):
    """A step and its rank; as text it is the id of the operation."""

    step: int
    rank: int

    def __str__(self) -> str:
        return f"s{self.step}.{self.rank}"

    @classmethod
    def of(cls, path: str) -> "StepId":
        """The step that an operation is, or lies in, by its path; raises TraceError if a path does not begin
        with a step."""
        found = _STEP.match(path)
        if found is None:
            raise TraceError(f"expected the path of an operation, as s5.0/t3, found {path!r}")
        return cls(int(found[1]), int(found[2]))
