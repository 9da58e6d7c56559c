"""Measuring an entry file in the background, from the saved file and settings to costs by file and line."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from stepscope.base.input_files import content_of
from stepscope.base.scratch import plan_scratch
from stepscope.base.typed_data import convert
from stepscope.errors import AmbiguousBatchSize, BatchError, ScratchError
from stepscope.faces.editor.text_document import split_lines
from stepscope.models.batch_size.breakdown import LineBreakdown, StepBreakdown
from stepscope.models.batch_size.entry_result import Result, batch_answer
from stepscope.models.batch_size.profile_session import Session
from stepscope.models.batch_size.site import Site, SiteChoice
from stepscope.models.batch_size.source_facts import read_facts
from stepscope.models.batch_size.source_files import read_text, settings_files
from stepscope.models.batch_size.sweep import QUICK

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
        costs.setdefault(os.path.realpath(cost.file), {})[cost.line] = cost
    read = {path: _lines_of(path, texts) for path in costs}
    return {
        path: FileCosts(lines, costs[path], breakdown.step_ms)
        for path, lines in read.items()
        if lines is not None
    }


def _lines_of(path: str, texts: Mapping[str, str]) -> Sequence[str] | None:
    with suppress(OSError, UnicodeDecodeError):
        return split_lines(texts[path] if path in texts else content_of(path).decode())
    return None


class Measuring:
    """Measures one entry file at a time, in a process that is kept ready between them."""

    def __init__(self) -> None:
        self._session = Session(on_progress=self._progress)
        self._lock = asyncio.Lock()
        self._report: Report = _ignore
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None

    def prepare(self) -> None:
        """Import PyTorch ahead of a measurement, unless either is already running."""
        busy = self._lock.locked() or (self._ready is not None and not self._ready.done())
        if not busy:
            loop = asyncio.get_running_loop()
            self._session.cancel.clear()
            self._ready = loop.run_in_executor(None, self._warm_up)

    def describe_run(self, entry: str, settings: Settings) -> str:
        """One sentence about what a measurement of an entry file would run, and where."""
        command = " ".join([Path(entry).name, *settings.arguments])
        try:
            scratch = plan_scratch(entry, str(Path(entry).parent), in_place=settings.in_place)
        except ScratchError as error:
            return f"stepscope cannot run {command} without changing its project: {error}"
        return f"stepscope runs {command} several times, a few steps each, {scratch.sentence}."

    async def __call__(self, request: MeasureRequest, report: Report) -> Measured:
        """Measure; when cancelled, it ends the measuring process first; raises MeasureError if the file has
        no batch size, or it fails, or it hangs."""
        async with self._lock:
            if self._ready is not None:
                await asyncio.shield(self._ready)  # one thread at a time uses the process
            self._report, self._loop = report, asyncio.get_running_loop()
            self._session.cancel.clear()
            work = self._loop.run_in_executor(None, self._profile, request)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                self._session.cancel.set()
                await _finished(work)
                raise
            finally:
                self._report = _ignore

    async def close(self) -> None:
        if self._ready is not None:
            await asyncio.wait([self._ready])  # its thread may be about to start the process
        await asyncio.get_running_loop().run_in_executor(None, self._session.close)

    def _warm_up(self) -> None:
        with suppress(BatchError):  # reported when something is to be measured
            self._session.warm_up()

    def _profile(self, request: MeasureRequest) -> Measured:
        folder = Path(request.entry).parent
        self._session.in_place = request.settings.in_place
        try:
            result = self._session.profile(
                request.entry,
                request.settings.arguments,
                unsaved=request.unsaved,
                choice=request.choice,
                folder=folder,
                plan=replace(QUICK, timeout_s=request.settings.time_limit),
            )
        except (BatchError, ScratchError) as error:
            raise MeasureError(_problem(request, error)) from error
        return _measured(request.entry, result)

    def _progress(self, message: str, done: int, total: int) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._report, message, done / max(total, 1))


async def _finished(work: asyncio.Future[Measured]) -> None:
    """Wait for a thread even if cancelled repeatedly: two threads must not share a process."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # retrieved, as nobody waits for it any more


def _problem(request: MeasureRequest, error: BatchError | ScratchError) -> Problem:
    entry = request.entry
    settings = _settings_before(request)
    if isinstance(error, AmbiguousBatchSize):
        sites = [site.at(path=os.path.realpath(site.path)) for site in error.candidates]
        message = "several batch sizes; choose one by its quick fix"
        return Problem(message, sites[0].path, sites[0].line, sites, settings)
    message = str(error).replace(f"{Path(entry).parent}{os.sep}", "")  # short file names
    if isinstance(error, ScratchError):
        return Problem(message, entry, 1, settings=settings)
    return Problem(message, error.file or entry, error.line or 1, settings=settings)


def _settings_before(request: MeasureRequest) -> tuple[str, ...]:
    """The settings files of a script that was not measured; none if it cannot be read."""
    with suppress(BatchError):
        text = request.unsaved.get(request.entry) or read_text(request.entry)
        return _settings_of(text, request.entry, request.settings.arguments)
    return ()


def _measured(entry: str, result: Result) -> Measured:
    texts = {path: source.text for path, source in result.entry.sources.items()}
    answer = batch_answer(result)
    costs = costs_by_file(result.breakdown, texts) if result.breakdown else {}
    capture = str(result.capture) if result.capture else None
    settings = _settings_of(result.entry.sources[result.entry.path].text, entry, result.entry.arguments)
    return Measured(entry, costs, answer, capture=capture, settings=settings, result=result)


def _settings_of(text: str, entry: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The settings files that the script reads, with symbolic links resolved."""
    files = settings_files(entry, arguments, read_facts(text, entry).strings, str(Path(entry).parent))
    return tuple(os.path.realpath(file) for file in files)


def _ignore(message: str, done: float) -> None:
    """Report no progress."""
