"""Measured costs by file and line, and the editor settings that they were measured with."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from stepscope.base.input_files import content_of
from stepscope.base.typed_data import convert
from stepscope.faces.editor.text_document import split_lines
from stepscope.models.batch_size.breakdown import LineBreakdown, StepBreakdown
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.site import Site, SiteChoice

Report = Callable[[str, float], None]  # what is being done, and the fraction done, 0 to 1
_LONGEST_S = 1e9  # of a time limit: 30 years; infinity is none


class Settings(msgspec.Struct, frozen=True, rename="camel"):
    """The settings of the language server; an editor sends them under `stepscope`."""

    measure_on_save: bool = True  # measure a file again when it is saved
    arguments: tuple[str, ...] = ()  # of the training script
    time_limit: Annotated[float, msgspec.Meta(gt=0, lt=_LONGEST_S)] = 120.0  # of a measurement, seconds
    hints: Literal["inlay", "lens", "off"] = "inlay"
    run_scripts: Literal["ask", "always", "never"] = "ask"  # `ask` before the first run
    in_place: bool = False  # run scripts in the project itself instead of a scratch view of it


def settings_of(values: Any) -> Settings:
    """Settings as an editor sends them; missing or invalid values keep their default."""
    if isinstance(values, Mapping) and isinstance(values.get("stepscope"), Mapping):
        values = values["stepscope"]
    valid: dict[str, Any] = {}
    for setting in msgspec.structs.fields(Settings) if isinstance(values, Mapping) else ():
        value = values.get(setting.encode_name)
        if setting.name == "arguments" and isinstance(value, list | tuple):
            value = [*map(str, value)]
        with suppress(msgspec.ValidationError):
            valid[setting.name] = convert(value, setting.type)
    return Settings(**valid)


@dataclass(frozen=True)
class FileCosts:
    """The costs of a file by line number from 1, and its lines as they were measured, without ends."""

    text: Sequence[str]
    lines: Mapping[int, LineBreakdown] = field(default_factory=dict)
    step_ms: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Why measuring failed."""

    message: str  # one line
    path: str  # the file to look at
    line: int  # from 1
    candidates: Sequence[Site] = ()  # the batch sizes among which a user must choose
    settings: Sequence[str] = ()  # paths of the settings files that the script reads


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure: a script, with texts that are not saved by path."""

    entry: str
    settings: Settings
    unsaved: Mapping[str, str] = field(default_factory=dict)
    choice: SiteChoice | None = None


@dataclass(frozen=True)
class Measured:
    """All that one measurement of an entry file found."""

    entry: str  # path of the file that was measured
    files: Mapping[str, FileCosts]  # costs by path
    # The answer of `stepscope batch --json`, or None where no batch size was found.
    batch: Mapping[str, Any] | None = None
    findings: Sequence[Mapping[str, Any]] = ()  # the analyzer's
    capture: str | None = None  # the recorded steps, for the analyzer
    settings: Sequence[str] = ()  # paths of the settings files that the script reads
    result: Result | None = None  # the measurement itself, for predictions for other devices


class MeasureError(Exception):
    """A measurement failed; `problem` has the reason and the location."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def costs_by_file(breakdown: StepBreakdown, texts: Mapping[str, str]) -> dict[str, FileCosts]:
    """Costs by path, with the text that their lines belong to; without files that cannot be read."""
    costs: dict[str, dict[int, LineBreakdown]] = {}
    for cost in breakdown.lines:
        costs.setdefault(str(Path(cost.file).resolve()), {})[cost.line] = cost
    read = {path: _lines_of(path, texts) for path in costs}
    return {
        path: FileCosts(lines, costs[path], breakdown.step_ms)
        for path, lines in read.items()
        if lines is not None
    }


def _lines_of(path: str, texts: Mapping[str, str]) -> Sequence[str] | None:
    try:
        text = texts[path] if path in texts else content_of(path).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return split_lines(text)
