"""The protocol: what an editor asks, answered from what was measured."""

from __future__ import annotations

import contextlib
from typing import Any

from lsprotocol import types as lsp

from stepscope.errors import BatchError
from stepscope.predict.find import find_site, has_providers
from stepscope.serve.language.actions import batch_actions
from stepscope.serve.language.documents import path_of
from stepscope.serve.language.hints import code_lenses, inlay_hints
from stepscope.serve.language.hover import hover_text
from stepscope.serve.language.server import Measure, StepscopeServer
from stepscope.serve.language.settings import settings_of

_SAVE_PAUSE_S = 0.2  # several files saved at once are one measurement


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
        document = params.text_document
        path = path_of(document.uri)
        server.documents.open[path] = document.uri
        server.send_marks(document.uri)
        # PyTorch is imported for whoever writes a model, not for every Python file.
        if has_providers(document.text) or server.documents.entry_of(path):
            server.measure.prepare()

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.documents.open.pop(path_of(params.text_document.uri), None)

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
