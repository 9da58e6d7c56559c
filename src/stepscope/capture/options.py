"""What to record."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What to record.

    Attributes:
        warmup: steps to let pass before recording.
        steps: steps to record.
        memory: also record every allocation.
        shapes: also record the shapes of operator inputs.
        stack: also record Python stacks (costly).
    """

    warmup: int = 5
    steps: int = 3
    memory: bool = False
    shapes: bool = True
    stack: bool = False
