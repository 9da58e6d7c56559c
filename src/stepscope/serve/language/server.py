"""The protocol: what an editor asks, answered from what was measured."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from stepscope.errors import BatchError
from stepscope.predict.find import find_site
from stepscope.serve.language.actions import batch_actions, batch_edit
from stepscope.serve.language.costs import Measured, Problem
from stepscope.serve.language.documents import Documents, path_of, uri_of
from stepscope.serve.language.findings import find_findings
from stepscope.serve.language.hints import code_lenses, inlay_hints
from stepscope.serve.language.hover import hover_text
from stepscope.serve.language.jobs import Jobs
from stepscope.serve.language.marks import Mark, marks_of
from stepscope.serve.language.settings import Settings, settings_of
from stepscope.version import __version__

Report = Callable[[str, float], None]  # what goes on, and how much of it is done, 0 to 1


class Measure(Protocol):
    """Measures entry files, one at a time."""

    async def __call__(self, entry: str, settings: Settings, report: Report) -> Measured:
        """Measure an entry file; raises `MeasureError`."""

    def prepare(self) -> None:
        """Get ready for the first."""

    async def close(self) -> None:
        """End what still runs."""


_SAVE_PAUSE_S = 0.2  # several files saved at once are one measurement


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

    async def close(self) -> None:
        """End what still runs in the background."""
        await self.jobs.close()
        await self.measure.close()

    # -- measuring

    def begin(self, entry: str, pause_s: float = 0.0) -> None:
        """Measure an entry file in the background; an earlier measurement of it is ended."""
        self.jobs.start(entry, lambda: self._measure(entry), pause_s)

    async def _measure(self, entry: str) -> None:
        token = await self._begin_progress(entry)
        self._say(entry, "measuring", "measuring …")
        try:
            measured = await self.measure(entry, self.settings, self._reporter(entry, token))
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
            self._end_progress(token)
        self.refresh(entry)
        self._say(entry, state, message)
        if state == "measured":
            self.jobs.start(f"findings of {entry}", lambda: self._analyze(entry))

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
        told = self.documents.diagnostics(entry)
        for path in dict.fromkeys([*self.documents.files(entry), *told]):
            uri = uri_of(path)
            params = lsp.PublishDiagnosticsParams(uri, told.get(path, []))
            self.text_document_publish_diagnostics(params)
            self.send_marks(uri)
        workspace = self.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    async def _begin_progress(self, entry: str) -> str | None:
        window = self.client_capabilities.window
        if not (window and window.work_done_progress):
            return None
        token = str(uuid4())
        await self.work_done_progress.create_async(token)
        begin = lsp.WorkDoneProgressBegin(
            title="stepscope", message=f"measuring {_name(entry)}", cancellable=True, percentage=0
        )
        self.work_done_progress.begin(token, begin)
        self.work_done_progress.tokens[token].add_done_callback(
            lambda future: future.cancelled() and self.jobs.cancel(entry)
        )
        return token

    def _reporter(self, entry: str, token: str | None) -> Report:
        def report(message: str, done: float) -> None:
            if token is not None:
                value = lsp.WorkDoneProgressReport(message=message, percentage=int(100 * done))
                self.work_done_progress.report(token, value)
            self._say(entry, "measuring", message)

        return report

    def _end_progress(self, token: str | None) -> None:
        if token is not None:
            self.work_done_progress.end(token, lsp.WorkDoneProgressEnd())

    def _say(self, entry: str, state: str, message: str) -> None:
        told = {"uri": uri_of(entry), "state": state, "message": message}
        self.protocol.notify("stepscope/state", told)

    # -- documents

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
        document = self.workspace.get_text_document(uri_of(entry))
        try:
            return find_site(document.source, entry).value
        except (BatchError, OSError):
            return None

    def batch_edit(self, uri: str, batch: int) -> tuple[str, lsp.TextEdit]:
        """The edit that sets the batch size of the entry file that a document belongs to."""
        path = path_of(uri)
        entry = self.documents.entry_of(path) or path
        document = self.workspace.get_text_document(uri if entry == path else uri_of(entry))
        return batch_edit(document, entry, batch, self.workspace.get_text_document)


def language_server(measure: Measure) -> StepscopeServer:
    """A server with all it can do registered.

    Args:
        measure: measures an entry file in the background.

    Returns:
        The server; `start_io()` serves an editor on standard input and output.
    """
    server = StepscopeServer(measure)
    for register in (_lifecycle, _synchronization, _shown, _actions, _own_messages):
        register(server)
    return server


def _lifecycle(server: StepscopeServer) -> None:
    @server.feature(lsp.INITIALIZE)
    async def initialize(params: lsp.InitializeParams) -> None:
        server.settings = settings_of(params.initialization_options)
        server.measure.prepare()

    @server.feature(lsp.WORKSPACE_DID_CHANGE_CONFIGURATION)
    def configure(params: lsp.DidChangeConfigurationParams) -> None:
        if params.settings:
            server.settings = settings_of(params.settings)
            for entry in list(server.documents.measured):
                server.refresh(entry)

    @server.feature(lsp.SHUTDOWN)
    async def shutdown(_: None) -> None:
        await server.close()


def _synchronization(server: StepscopeServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.send_marks(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.send_marks(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        entry = server.documents.entry_of(path_of(params.text_document.uri))
        if entry and server.settings.measure_on_save:
            server.begin(entry, _SAVE_PAUSE_S)


def _shown(server: StepscopeServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def inlay(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        if server.settings.hints != "inlay":
            return []
        document = server.workspace.get_text_document(params.text_document.uri)
        lines = document.source.splitlines()
        return inlay_hints(server.marks(document), lines, document.position_codec, params.range)

    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)
    def lens(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        if server.settings.hints != "lens":
            return []
        document = server.workspace.get_text_document(params.text_document.uri)
        return code_lenses(server.marks(document))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document = server.workspace.get_text_document(params.text_document.uri)
        found = [mark for mark in server.marks(document) if mark.line == params.position.line]
        if not found:
            return None
        text = "\n\n".join(map(hover_text, found))
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text))


def _actions(server: StepscopeServer) -> None:
    kinds = lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.RefactorRewrite])

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, kinds)
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        measured = server.documents.measured.get(path_of(uri))
        if measured is None or measured.batch is None:
            return []
        document = server.workspace.get_text_document(uri)
        with contextlib.suppress(BatchError):
            site = find_site(document.source, path_of(uri))
            if site.path == path_of(uri) and site.line - 1 == params.range.start.line:
                suggestions = measured.batch.get("suggestions", ())
                return batch_actions(site, suggestions, lambda batch: server.batch_edit(uri, batch))
        return []


def _own_messages(server: StepscopeServer) -> None:
    @server.feature("stepscope/measure")
    async def measure(params: Any) -> None:
        path = path_of(params.uri)
        server.begin(server.documents.entry_of(path) or path)

    @server.feature("stepscope/cancel")
    async def cancel(params: Any) -> bool:
        path = path_of(params.uri)
        return server.jobs.cancel(server.documents.entry_of(path) or path)

    @server.feature("stepscope/answer")
    def answer(params: Any) -> dict[str, Any]:
        path = path_of(params.uri)
        entry = server.documents.entry_of(path) or path
        measured = server.documents.measured.get(entry)
        problem = server.documents.problems.get(entry)
        return {
            "batch": measured.batch if measured else None,
            "problem": problem.message if problem else None,
            "written": server.written(entry),
        }

    @server.feature("stepscope/batchEdit")
    def edit(params: Any) -> dict[str, Any]:
        try:
            uri, change = server.batch_edit(params.uri, int(params.value))
        except BatchError as error:
            return {"problem": str(error)}
        return {"uri": uri, "range": change.range, "newText": change.new_text}


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _summary(measured: Measured) -> str:
    """What the status bar says."""
    batch = measured.batch
    now = batch.get("now") if batch else None
    if not now:
        return "measured"
    return f"{now['throughput']:.0f} samples/s at {now['batch']}"
