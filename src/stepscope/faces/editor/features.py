"""The protocol: each request of the client, answered from the measured costs."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from attrs import evolve as replace
from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from stepscope.base.typed_data import convert
from stepscope.errors import BatchError
from stepscope.faces.editor.background import predict_devices
from stepscope.faces.editor.code_actions import (
    CANCEL_COMMAND,
    CHOOSE_COMMAND,
    MEASURE_COMMAND,
    MEASURE_TITLE,
    DocumentNotOpen,
    measure_action,
)
from stepscope.faces.editor.documents import AMBIGUOUS, path_of
from stepscope.faces.editor.language_server import StepscopeServer
from stepscope.faces.editor.line_marks import code_lenses, hover_text, inlay_hints
from stepscope.faces.editor.measuring import Measuring, settings_of
from stepscope.faces.editor.text_document import split_lines
from stepscope.models.batch_size.entry_result import panel_answer
from stepscope.models.batch_size.find_site import has_providers
from stepscope.models.batch_size.site import SiteChoice
from stepscope.models.devices import Wanted

_ASKED_S = 1.0  # to wait for a long script that is being parsed, if a person asked for actions
_AUTOMATIC_S = 0.03  # if the editor asks by itself, after each movement
_SAVE_PAUSE_S = 0.2  # several files saved at once are one measurement


def language_server(measure: Measuring) -> StepscopeServer:
    """A server with all its features."""
    server = StepscopeServer(measure)
    for register in (_lifecycle, _synchronization, _displays, _actions, _commands, _own_messages):
        register(server)
    return server


def _lifecycle(server: StepscopeServer) -> None:
    @server.feature(lsp.INITIALIZE)
    async def initialize(params: lsp.InitializeParams) -> None:
        server.use_specified_lines(params)
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
        # Import PyTorch ahead only for model files, not for every Python file.
        if has_providers(document.text) or server.documents.entry_of(path):
            server.measure.prepare()

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.documents.open.pop(path_of(params.text_document.uri), None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.send_marks(params.text_document.uri)
        server.look_ahead(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    async def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        entry = server.documents.entry_of(path_of(params.text_document.uri))
        if entry and server.settings.measure_on_save:
            server.begin(entry, _SAVE_PAUSE_S)


def _displays(server: StepscopeServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def inlay(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        marks = server.marks(params.text_document.uri)
        if server.settings.hints != "inlay" or not marks:
            return []
        document = server.workspace.get_text_document(params.text_document.uri)
        return inlay_hints(marks, split_lines(document.source), document.position_codec, params.range)

    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)
    def lens(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        if server.settings.hints != "lens":
            return []
        return code_lenses(server.marks(params.text_document.uri))

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        marks = server.marks(params.text_document.uri)
        texts = [hover_text(mark) for mark in marks if mark.line == params.position.line]
        if not texts:
            return None
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n".join(texts)))


def _actions(server: StepscopeServer) -> None:
    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.RefactorRewrite, lsp.CodeActionKind.Source]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds))
    async def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri = params.text_document.uri
        if not server.is_open(uri):
            return []
        path = path_of(uri)
        found = await _site_actions(server, path, params)
        if path.endswith(".py"):
            found.append(measure_action(server.documents.uri_of(path)))
        return [action for action in found if _wanted(action, params.context.only)]


async def _site_actions(
    server: StepscopeServer, path: str, params: lsp.CodeActionParams
) -> list[lsp.CodeAction]:
    """What can be done on the line of a batch size, once that is known for the current texts."""
    entry = server.documents.entry_of(path)
    if entry is None:
        return []
    asked = params.context.trigger_kind != lsp.CodeActionTriggerKind.Automatic
    search = server.current_site(entry)
    await asyncio.wait([search], timeout=_ASKED_S if asked else _AUTOMATIC_S)
    if not search.done():
        return []
    here = path, params.range.start.line + 1
    found = [action for site, of in search.result() if (site.path, site.line) == here for action in of]
    if not _takes_versioned_edits(server.client_capabilities):
        # Without a version, an edit may land in another text than it was made for.
        found = [action for action in found if action.edit is None]
    return [_with_diagnostics(action, params.context.diagnostics) for action in found]


def _with_diagnostics(action: lsp.CodeAction, diagnostics: Sequence[lsp.Diagnostic]) -> lsp.CodeAction:
    """A quick fix names the diagnostics that it resolves, so that clients show it at them."""
    if action.kind != lsp.CodeActionKind.QuickFix:
        return action
    fixed = [diagnostic for diagnostic in diagnostics if diagnostic.code == AMBIGUOUS]
    return replace(action, diagnostics=fixed)


def _takes_versioned_edits(capabilities: lsp.ClientCapabilities) -> bool:
    workspace = capabilities.workspace
    edit = workspace.workspace_edit if workspace else None
    # Neovim names only the resource operations, which exist in versioned edits alone.
    return bool(edit and (edit.document_changes or edit.resource_operations))


def _wanted(action: lsp.CodeAction, only: Sequence[Any] | None) -> bool:
    kind = str(getattr(action.kind, "value", action.kind))
    names = [str(getattr(one, "value", one)) for one in only or ()]
    return not names or any(kind == name or kind.startswith(f"{name}.") for name in names)


def _commands(server: StepscopeServer) -> None:
    @server.command(MEASURE_COMMAND)
    async def measure(*uris: str) -> None:
        for uri in uris or _only_script(server):
            server.begin(server.entry(uri))

    @server.command(CHOOSE_COMMAND)
    async def choose(uri: str = "", choice: Any = None) -> None:
        try:
            server.choose(path_of(uri), convert(choice, SiteChoice))
        except msgspec.ValidationError as error:
            raise JsonRpcInvalidParams(f"no choice of a batch size: {error}") from error

    @server.command(CANCEL_COMMAND)
    async def cancel(*uris: str) -> bool:
        stopped = [server.jobs.cancel(server.entry(uri)) for uri in uris or _only_script(server)]
        return any(stopped)


def _only_script(server: StepscopeServer) -> list[str]:
    """The file that a command means if an editor sends none, as Helix does: the only script."""
    scripts = [uri for path, uri in server.documents.open.items() if path.endswith(".py")]
    if len(scripts) == 1:
        return scripts
    server.warn(
        f"{len(scripts)} Python files are open: use the code action "
        f'"{MEASURE_TITLE}" in the one that you mean'
    )
    return []


def _own_messages(server: StepscopeServer) -> None:
    @server.feature("stepscope/measure")
    async def measure(params: Any) -> None:
        server.begin(server.entry(_uri(params)))

    @server.feature("stepscope/cancel")
    async def cancel(params: Any) -> bool:
        return server.jobs.cancel(server.entry(_uri(params)))

    @server.feature("stepscope/answer")
    async def answer(params: Any) -> dict[str, Any]:
        entry = server.entry(_uri(params))
        measured = server.documents.measured.get(entry)
        problem = server.documents.problems.get(entry)
        return panel_answer(
            measured.batch if measured else None,
            problem.message if problem else None,
            await server.current_batch(entry),
        )

    @server.feature("stepscope/devices")
    async def devices(params: Any) -> dict[str, Any]:
        measured = server.documents.measured.get(server.entry(_uri(params)))
        result = measured.result if measured else None
        ranks, bandwidth = _number(params, "ranks"), _number(params, "bandwidth")
        wanted = Wanted(ranks=max(int(ranks), 1), bandwidth_gbps=bandwidth)
        reply = await predict_devices(result, str(_field(params, "on")), wanted)
        return msgspec.to_builtins(reply)

    @server.feature("stepscope/batchEdit")
    async def batch_edit(params: Any) -> dict[str, Any]:
        uri, batch = _uri(params), int(_number(params, "value"))
        try:
            edit = await server.batch_edit(uri, batch)
        except DocumentNotOpen as error:
            return {"problem": str(error), "open": server.documents.uri_of(str(error.file))}
        except BatchError as error:
            return {"problem": str(error)}
        place = {"uri": edit.uri, "version": edit.version, "range": edit.range}
        return {**place, "expected": edit.expected, "newText": edit.new_text}


def _field(params: Any, name: str) -> Any:
    return params.get(name) if isinstance(params, dict) else None


def _uri(params: Any) -> str:
    uri = _field(params, "uri")
    if not isinstance(uri, str):
        raise JsonRpcInvalidParams(f"expected the URI of a document, found {uri!r}")
    return uri


def _number(params: Any, name: str) -> float:
    """A finite number; an editor may send its text."""
    value = _field(params, name)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise JsonRpcInvalidParams(f"expected a number for {name}, found {value!r}")
    return number
