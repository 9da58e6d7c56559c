"""The extent of a sweep."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.batch_size.sweep_points import POINTS, WANTED
from stepscope.capture.batch_size.request import Effort


@dataclass(frozen=True)
class Plan:
    """The extent of a sweep.

    Attributes:
        points: batch sizes; the last one is held back to find the error.
        extra: further ones at most, where run time is no line.
        rounds: rounds over them at most.
        effort: steps in each measurement.
        timeout_s: seconds after which a measurement is given up as hung.
        breakdown: also find what each line, module and operator costs.
        estimate: where there is no GPU, also estimate memory without computing.
    """

    points: int = WANTED
    extra: int = 3
    rounds: int = 3
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 600.0
    breakdown: bool = True
    estimate: bool = True


# For an editor, which wants an answer while the file is still in mind.
QUICK = Plan(
    points=POINTS + 1,
    extra=0,
    rounds=1,
    effort=Effort(warmup=2, memory=1, least=3, seconds=0.2),
    timeout_s=60.0,
    estimate=False,
)
