"""Measured costs by file and line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepscope.batch_size.entry_result import Result
from stepscope.batch_size.site import Site, SiteChoice
from stepscope.lsp.editor_settings import Settings


class Part(NamedTuple):
    """A part of a line's cost: a module by its path, or an operator."""

    name: str
    ms: float


@dataclass(frozen=True)
class LineCost:
    """The cost of a line per step, including everything that it calls.

    Attributes:
        line: number from 1.
        share: share of the step's time, 0 to 1.
        forward_ms: time in forward.
        backward_ms: time in backward.
        weight_bytes: size of the parameters that it creates.
        activation_bytes: size of the activations that it keeps for backward.
        modules: its time by module, the longest first.
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
        candidates: the batch sizes among which a user must choose.
        settings: paths of the settings files that the script reads.
    """

    message: str
    path: str
    line: int
    candidates: Sequence[Site] = ()
    settings: Sequence[str] = ()


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure.

    Attributes:
        entry: path of the script.
        settings: of the editor.
        unsaved: texts that are not saved, by path.
        choice: which of several batch sizes.
    """

    entry: str
    settings: Settings
    unsaved: Mapping[str, str] = field(default_factory=dict)
    choice: SiteChoice | None = None


@dataclass(frozen=True)
class Measured:
    """All that one measurement of an entry file found.

    Attributes:
        entry: path of the file that was measured.
        files: costs by path.
        batch: the answer of `stepscope batch --json`, or None where no batch size was found.
        findings: the analyzer's.
        capture: the recorded steps, for the analyzer.
        settings: paths of the settings files that the script reads.
        result: the measurement itself, for predictions for other devices.
    """

    entry: str
    files: Mapping[str, FileCosts]
    batch: Mapping[str, Any] | None = None
    findings: Sequence[Mapping[str, Any]] = ()
    capture: str | None = None
    settings: Sequence[str] = ()
    result: Result | None = None
