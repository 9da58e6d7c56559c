"""Measuring an entry file in the background, from the saved file to its costs."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.base.scratch import plan_scratch
from stepscope.errors import AmbiguousBatchSize, BatchError, ScratchError
from stepscope.faces.editor.measured_costs import (
    Measured,
    MeasureError,
    MeasureRequest,
    Problem,
    Report,
    Settings,
    costs_by_file,
)
from stepscope.models.batch_size.entry_result import Result, batch_answer
from stepscope.models.batch_size.profile_session import Session
from stepscope.models.batch_size.source_facts import read_facts
from stepscope.models.batch_size.source_files import read_text, settings_files
from stepscope.models.batch_size.sweep import QUICK


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
        """Measure; when cancelled, it ends the measuring process first.

        Raises:
            MeasureError: the file has no batch size, or it fails, or it hangs.
        """
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
        with contextlib.suppress(BatchError):  # reported when something is to be measured
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
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # retrieved, as nobody waits for it any more


def _problem(request: MeasureRequest, error: BatchError | ScratchError) -> Problem:
    entry = request.entry
    settings = _settings_before(request)
    if isinstance(error, AmbiguousBatchSize):
        sites = [site.at(path=str(Path(site.path).resolve())) for site in error.candidates]
        message = "several batch sizes; choose one by its quick fix"
        return Problem(message, sites[0].path, sites[0].line, sites, settings)
    message = str(error).replace(f"{Path(entry).parent}{os.sep}", "")  # short file names
    if isinstance(error, ScratchError):
        return Problem(message, entry, 1, settings=settings)
    return Problem(message, error.file or entry, error.line or 1, settings=settings)


def _settings_before(request: MeasureRequest) -> tuple[str, ...]:
    """The settings files of a script that was not measured; none if it cannot be read."""
    with contextlib.suppress(BatchError):
        text = request.unsaved.get(request.entry) or read_text(request.entry)
        return _settings_of(text, request.entry, request.settings.arguments)
    return ()


def _measured(entry: str, result: Result) -> Measured:
    texts = {path: source.text for path, source in result.entry.sources.items()}
    answer = batch_answer(result)
    costs = costs_by_file(result.breakdown, texts) if result.breakdown else {}
    capture = str(result.capture) if result.capture else None
    text = result.entry.sources[result.entry.path].text
    settings = _settings_of(text, entry, result.entry.arguments)
    return Measured(entry, costs, answer, capture=capture, settings=settings, result=result)


def _settings_of(text: str, entry: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The settings files that the script reads, with symbolic links resolved."""
    strings = read_facts(text, entry).strings
    files = settings_files(entry, arguments, strings, str(Path(entry).parent))
    return tuple(str(file.resolve()) for file in files)


def _ignore(message: str, done: float) -> None:
    """Report no progress."""
