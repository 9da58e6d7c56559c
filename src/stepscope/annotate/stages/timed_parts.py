"""The parts of recorded steps as the process itself timed them.

A call of `backward`, of an optimizer or of a data loader begins before its first event and ends
after its last one. The recorder notes when each began and ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stepscope.arrays import Mask, Rows, Times
from stepscope.trace.trace import Metadata, clock_of

OWN_WORK = "recorder"  # the recorder's own work inside a step


class TimedParts(NamedTuple):
    """When each part began.

    Attributes:
        names: of parts: stages, `rest`, and `recorder`.
        times: on the trace's clock, int64, ns, ascending, shape (n,).
        part: what began, a position in `names`, shape (n,).
    """

    names: list[str]
    times: Times
    part: Rows

    def at(self, moments: Times) -> Rows:
        """The part at each moment, -1 before the first, the shape of `moments`."""
        return np.append(self.part, -1)[np.searchsorted(self.times, moments, side="right") - 1]

    def own_work_at(self, moments: Times) -> Mask:
        """Whether the recorder itself works at each moment, the shape of `moments`."""
        own = self.names.index(OWN_WORK) if OWN_WORK in self.names else len(self.names)
        result: Mask = self.at(moments) == own
        return result


def timed_parts(metadata: Metadata) -> TimedParts | None:
    """The parts that a capture's recorder noted; None if it noted none."""
    changes = ((metadata.capture or {}).get("recorded_steps") or {}).get("changes")
    if not changes:
        return None
    after, part = (np.array(changes[name], np.int64) for name in ("after_ns", "part"))
    if not 0 < len(after) == len(part) or part.max() >= len(changes["parts"]):
        return None
    times = after + (changes["since_unix_ns"] - clock_of(metadata))
    return TimedParts(list(changes["parts"]), np.maximum.accumulate(times), part)


def with_parts_moved(metadata: Metadata, moved: Callable[[Times], Times]) -> dict[str, Any]:
    """The facts of a capture with its parts on another clock.

    Args:
        metadata: of the trace; its zero stays.
        moved: from times on the old clock to times on the new one, ns.
    """
    parts = timed_parts(metadata)
    capture = dict(metadata.capture)
    if parts is None:
        return capture
    times = moved(parts.times)
    changes = {
        **capture["recorded_steps"]["changes"],
        "since_unix_ns": int(times[0]) + clock_of(metadata),
        "after_ns": (times - times[0]).tolist(),
    }
    capture["recorded_steps"] = {**capture["recorded_steps"], "changes": changes}
    return capture
