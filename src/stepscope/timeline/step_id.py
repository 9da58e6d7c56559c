"""The id of a step, which starts the path of every operation: `s5.0` is step 5 of rank 0."""

from __future__ import annotations

import re
from typing import NamedTuple

from stepscope.errors import TraceError

_STEP = re.compile(r"s(\d+)\.(\d+)(?:/|$)")


class StepId(NamedTuple):
    """A step and its rank; as text it is the id of the operation.

    Example:
        >>> StepId.of("s5.0/t3"), str(StepId(5, 0))
        (StepId(step=5, rank=0), 's5.0')
    """

    step: int
    rank: int

    def __str__(self) -> str:
        return f"s{self.step}.{self.rank}"

    @classmethod
    def of(cls, path: str) -> StepId:
        """The step that an operation is, or lies in, by its path.

        Raises:
            TraceError: if a path does not begin with a step.
        """
        found = _STEP.match(path)
        if found is None:
            raise TraceError(f"expected the path of an operation, as s5.0/t3, found {path!r}")
        return cls(int(found[1]), int(found[2]))
