"""What was measured, by file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One of the things that a line leads to: a module by its path, or an operator."""

    name: str
    ms: float


@dataclass(frozen=True)
class LineCost:
    """What a line costs in a step, with all that it leads to.

    Attributes:
        line: number from 1.
        share: of the step's time, 0 to 1.
        forward_ms: time in forward.
        backward_ms: time in backward.
        weight_bytes: parameters that it makes.
        activation_bytes: what it keeps for backward.
        modules: where the time goes, the longest first.
        operators: the same by operator.
    """

    line: int
    share: float
    forward_ms: float
    backward_ms: float = 0.0
    weight_bytes: int = 0
    activation_bytes: int = 0
    modules: tuple[Part, ...] = ()
    operators: tuple[Part, ...] = ()

    @property
    def run_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + self.backward_ms

    @property
    def bytes(self) -> int:
        """Weights and activations together."""
        return self.weight_bytes + self.activation_bytes


@dataclass(frozen=True)
class FileCosts:
    """The costs of one file.

    Attributes:
        text: its lines as they were measured, without their ends.
        lines: cost by line number, from 1.
    """

    text: Sequence[str]
    lines: Mapping[int, LineCost] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """Why measuring failed.

    Attributes:
        message: one line.
        path: the file to look at.
        line: from 1.
    """

    message: str
    path: str
    line: int


@dataclass(frozen=True)
class Measured:
    """All that one measurement of an entry file found.

    Attributes:
        entry: path of the file that was measured.
        files: costs by path.
        batch: the answer of `stepscope batch --json`, or None where no batch size was found.
        findings: the analyzer's.
        capture: the recorded steps, for the analyzer.
    """

    entry: str
    files: Mapping[str, FileCosts]
    batch: Mapping[str, Any] | None = None
    findings: Sequence[Mapping[str, Any]] = ()
    capture: str | None = None
