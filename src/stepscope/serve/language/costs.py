"""What was measured, by file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Part:
    """One of the things that a line does: a call of a module, or an operator.

    Attributes:
        label: `layer1.0.conv1 (Conv2d)`, `aten::mm`.
        forward_ms: time in forward, a step.
        backward_ms: time in backward, a step.
        weight_bytes: parameters held, or None where unknown.
        activation_bytes: kept for backward, or None.
    """

    label: str
    forward_ms: float
    backward_ms: float
    weight_bytes: int | None = None
    activation_bytes: int | None = None


@dataclass(frozen=True)
class LineCost:
    """A line's cost in a step, with what it calls.

    Attributes:
        line: number from 1.
        share: of the step's time, 0 to 1.
        parts: the most expensive first.
    """

    line: int
    share: float
    parts: tuple[Part, ...]

    @property
    def run_ms(self) -> float:
        """Forward and backward together."""
        return sum(part.forward_ms + part.backward_ms for part in self.parts)

    @property
    def bytes(self) -> int | None:
        """Weights and activations together, None where nothing is known."""
        known = [part.weight_bytes for part in self.parts]
        known += [part.activation_bytes for part in self.parts]
        told = [size for size in known if size is not None]
        return sum(told) if told else None


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
    """

    entry: str
    files: Mapping[str, FileCosts]
    batch: Mapping[str, Any] | None = None
    findings: Sequence[Mapping[str, Any]] = ()
