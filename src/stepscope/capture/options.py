"""What to record of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordOptions:
    """What to record of a run.

    Attributes:
        warmup: steps to skip before recording.
        steps: steps to record.
        memory: also record every allocation.
        shapes: also record the shapes of operator inputs.
        stack: also record Python stacks (costly).
        step_every: a step is this many optimizer steps, or iterations, in a row.
        from_optimizer: counted from 1, the first optimizer whose steps count.
    """

    warmup: int = 5
    steps: int = 3
    memory: bool = False
    shapes: bool = True
    stack: bool = False
    step_every: int = 1
    from_optimizer: int = 1
