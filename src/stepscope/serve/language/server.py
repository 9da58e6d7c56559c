"""The server: measures in the background, and tells the editor what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from stepscope.errors import BatchError
from stepscope.predict.find import find_site
from stepscope.serve.language.actions import batch_edit
from stepscope.serve.language.costs import Measured, Problem
from stepscope.serve.language.documents import Documents, path_of
from stepscope.serve.language.findings import find_findings
from stepscope.serve.language.jobs import Jobs
from stepscope.serve.language.marks import Mark, marks_of
from stepscope.serve.language.problems import past_indentation
from stepscope.serve.language.progress import Progress
from stepscope.serve.language.settings import Settings
from stepscope.version import __version__

Report = Callable[[str, float], None]  # what goes on, and how much of it is done, 0 to 1


class Measure(Protocol):
    """Measures entry files, one at a time."""

    async def __call__(self, entry: str, settings: Settings, report: Report) -> Measured:
        """Measure an entry file; raises `MeasureError`."""

    def prepare(self) -> None:
        """Get ready: a file that is likely to be measured was opened."""

    async def close(self) -> None:
        """End what still runs."""


class MeasureError(Exception):
    """Measuring failed; `problem` says why and where."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class StepscopeServer(LanguageServer):
    """Answers an editor, and measures in the background.

    Args:
        measure: measures an entry file.
    """

    def __init__(self, measure: Measure) -> None:
        super().__init__("stepscope", __version__)
        self.measure = measure
        self.settings = Settings()
        self.documents = Documents()
        self.jobs = Jobs()
        self._told: set[str] = set()  # paths that something is wrong with

    async def close(self) -> None:
        """End what still runs in the background."""
        await self.jobs.close()
        await self.measure.close()

    # -- measuring

    def begin(self, entry: str, pause_s: float = 0.0) -> None:
        """Measure an entry file in the background; an earlier measurement of it is ended."""
        self.jobs.cancel(_findings_of(entry))  # of what is measured anew, and beside it
        self.jobs.start(entry, lambda: self._measure(entry), pause_s)

    async def _measure(self, entry: str) -> None:
        self._say(entry, "measuring", "measuring …")
        progress = Progress(self, f"measuring {_name(entry)}", lambda: self.jobs.cancel(entry))

        def report(message: str, done: float) -> None:
            progress.report(message, done)
            self._say(entry, "measuring", message)

        try:
            measured = await self.measure(entry, self.settings, report)
            self.documents.succeed(measured)
            state, message = "measured", _summary(measured)
        except MeasureError as error:
            self.documents.fail(entry, error.problem)
            state, message = "failed", error.problem.message
        except asyncio.CancelledError:
            self._say(entry, "cancelled", "stopped")
            raise
        except Exception as error:  # a fault of ours must not end the server, nor go unsaid
            message = f"stepscope failed, {type(error).__name__}: {error}; please report this"
            self.documents.fail(entry, Problem(message, entry, 1))
            state = "failed"
            logging.getLogger(__name__).exception(message)
        finally:
            progress.end()
        self.refresh(entry)
        self._say(entry, state, message)
        if state == "measured":
            self.jobs.start(_findings_of(entry), lambda: self._analyze(entry))

    async def _analyze(self, entry: str) -> None:
        """What the analyzer finds comes later: the costs do not wait for it."""
        measured = self.documents.measured[entry]
        if measured.capture is not None:
            found = await find_findings(measured.capture)
            if self.documents.measured[entry] is measured:  # not measured anew meanwhile
                self.documents.succeed(replace(measured, findings=found))
                self.refresh(entry)

    def refresh(self, entry: str) -> None:
        """Have everything that tells of an entry file drawn again."""
        self._publish()
        for path in dict.fromkeys(self.documents.files(entry)):
            self.send_marks(self.documents.uri_of(path))
        workspace = self.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    def _publish(self) -> None:
        """Tell what is wrong, and where nothing is any more."""
        told = self.documents.diagnostics()
        for path in self._told | told.keys():
            uri, wrong = self.documents.uri_of(path), told.get(path, [])
            if path in self.documents.open:
                lines = self.document(path).source.splitlines()
                wrong = [past_indentation(one, lines) for one in wrong]
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, wrong))
        self._told = set(told)

    def _say(self, entry: str, state: str, message: str) -> None:
        told = {"uri": self.documents.uri_of(entry), "state": state, "message": message}
        self.protocol.notify("stepscope/state", told)

    # -- documents

    def document(self, path: str) -> TextDocument:
        """A file as the editor has it."""
        return self.workspace.get_text_document(self.documents.uri_of(path))

    def marks(self, document: TextDocument) -> list[Mark]:
        """The marks of a document as it is now."""
        costs = self.documents.costs_of(path_of(document.uri))
        return marks_of(costs, document.source.splitlines()) if costs else []

    def send_marks(self, uri: str) -> None:
        """Tell the editor where to draw marks beside the lines."""
        if uri not in self.workspace.text_documents:
            return
        marks = self.marks(self.workspace.get_text_document(uri))
        told = [
            {"line": mark.line, "share": mark.cost.share, "stale": mark.stale}
            for mark in marks
            if mark.shown
        ]
        self.protocol.notify("stepscope/marks", {"uri": uri, "marks": told})

    def written(self, entry: str) -> int | None:
        """The batch size in the text as it is now, which may not have been measured yet."""
        try:
            return find_site(self.document(entry).source, entry).value
        except (BatchError, OSError):
            return None

    def batch_edit(self, uri: str, batch: int) -> tuple[str, lsp.TextEdit]:
        """The edit that sets the batch size of the entry file that a document belongs to."""
        path = path_of(uri)
        entry = self.documents.entry_of(path) or path
        return batch_edit(self.document(entry), entry, batch, self.document)


def _findings_of(entry: str) -> str:
    """The key of the job that looks for findings."""
    return f"findings of {entry}"


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _summary(measured: Measured) -> str:
    """What the status bar says."""
    batch = measured.batch
    now = batch.get("now") if batch else None
    if not now:
        return "measured"
    return f"{now['throughput']:.0f} samples/s at {now['batch']}"
