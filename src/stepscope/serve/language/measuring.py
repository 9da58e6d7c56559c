"""Measuring an entry file in the background, from the saved file to its costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

from stepscope.errors import BatchError
from stepscope.predict.plan import QUICK
from stepscope.predict.result import Result
from stepscope.predict.session import Session
from stepscope.serve.batch import batch_answer
from stepscope.serve.language.costs import Measured, Problem
from stepscope.serve.language.lines import files_of
from stepscope.serve.language.server import MeasureError, Report
from stepscope.serve.language.settings import Settings


class Measuring:
    """Measures one entry file at a time, in a process that is kept ready between them."""

    def __init__(self) -> None:
        self._session = Session(on_progress=self._progress)
        self._turn = asyncio.Lock()
        self._report: Report = _silent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: asyncio.Future[None] | None = None

    def prepare(self) -> None:
        """Have PyTorch imported before a file is measured; does nothing where that goes on."""
        at_work = self._turn.locked() or (self._ready is not None and not self._ready.done())
        if not at_work:
            loop = asyncio.get_running_loop()
            self._session.cancel.clear()
            self._ready = loop.run_in_executor(None, self._warm_up)

    async def __call__(self, entry: str, settings: Settings, report: Report) -> Measured:
        """Measure; cancelled, it ends the process that measures first.

        Raises:
            MeasureError: the file has no batch size, or fails, or hangs.
        """
        async with self._turn:
            if self._ready is not None:
                await asyncio.shield(self._ready)  # one thread at a time talks to the process
            self._report, self._loop = report, asyncio.get_running_loop()
            self._session.cancel.clear()
            work = self._loop.run_in_executor(None, self._profile, entry, settings)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                self._session.cancel.set()
                await _ended(work)
                raise
            finally:
                self._report = _silent

    async def close(self) -> None:
        """End the process that measures."""
        await asyncio.get_running_loop().run_in_executor(None, self._session.close)

    def _warm_up(self) -> None:
        with contextlib.suppress(BatchError):  # said when something is to be measured
            self._session.warm_up()

    def _profile(self, entry: str, settings: Settings) -> Measured:
        plan = replace(QUICK, timeout_s=settings.time_limit_s)
        folder = Path(entry).parent
        try:
            result = self._session.profile(entry, settings.arguments, folder=folder, plan=plan)
        except BatchError as error:
            message = str(error).replace(f"{folder}{os.sep}", "")  # names files as a person does
            problem = Problem(message, error.file or entry, error.line or 1)
            raise MeasureError(problem) from error
        return _measured(entry, result)

    def _progress(self, words: str, done: int, total: int) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._report, words, done / max(total, 1))


async def _ended(work: asyncio.Future[Measured]) -> None:
    """Wait for a thread however often one is told not to: two must not talk to one process."""
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    if not work.cancelled():
        work.exception()  # nobody asks any more


def _measured(entry: str, result: Result) -> Measured:
    texts = {path: source.text for path, source in result.entry.sources.items()}
    told = batch_answer(result)
    breakdown = told.get("breakdown")
    files = files_of(breakdown["lines"], breakdown["step_ms"], texts) if breakdown else {}
    capture = str(result.capture) if result.capture else None
    return Measured(entry, files, told, capture=capture)


def _silent(message: str, done: float) -> None:
    """Nobody asks."""
