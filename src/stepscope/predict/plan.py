"""How much to measure."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.capture.batch.request import Effort
from stepscope.predict.points import POINTS


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        points: batch sizes; the last one is held back to tell the error.
        rounds: rounds over them at most.
        effort: steps in each measurement.
        timeout_s: seconds after which a measurement is given up as hung.
        breakdown: also tell what each line, module and operator costs.
        estimate: where there is no GPU, also estimate memory without computing.
    """

    points: int = POINTS + 1
    rounds: int = 3
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 600.0
    breakdown: bool = True
    estimate: bool = True


# For an editor, which wants an answer while the file is still in mind.
QUICK = Plan(
    rounds=1,
    effort=Effort(warmup=2, memory=1, least=3, seconds=0.2),
    timeout_s=60.0,
    estimate=False,
)
