"""The server: measures in the background and sends the client the results."""

import asyncio
import json
import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from cattrs import Converter
from lsprotocol import types as lsp
from lsprotocol.converters import get_converter
from lsprotocol.types import EXIT, INITIALIZE, METHOD_TO_TYPES
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcMethodNotFound,
    JsonRpcParseError,
    JsonRpcServerNotInitialized,
)
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.json_rpc import JsonRPCNotification, JsonRPCRequestMessage, JsonRPCResponseMessage

from stepscope.base.numbers import rounded
from stepscope.faces.editor.background import Jobs, Progress, find_findings
from stepscope.faces.editor.code_actions import (
    CurrentSites,
    DocumentEdit,
    edit_document,
    find_current_sites,
    locate_site,
)
from stepscope.faces.editor.documents import Documents, OpenDocuments, past_indentation, path_of
from stepscope.faces.editor.line_marks import LineMark, marks_of
from stepscope.faces.editor.measuring import (
    Measured,
    MeasureError,
    MeasureRequest,
    Measuring,
    Problem,
    Settings,
)
from stepscope.faces.editor.text_document import BYTE_ORDER_MARK, Document, DocumentStore, split_lines
from stepscope.models.batch_size.site import SiteChoice
from stepscope.version import __version__

_TYPING_PAUSE_S = 0.1  # before a changed script is parsed
RUN, ALWAYS_RUN, DO_NOT_RUN = "Run", "Always in This Workspace", "Do Not Run"
_NEVER = 'not run: the setting "runScripts" is "never"'
_NOT_AGREED = "not run: you did not agree to running the script"
_CANNOT_ASK = (
    "not run: this editor cannot ask whether stepscope may run the script; "
    'set "runScripts" to "always" in its initializationOptions'
)


@cache
def shared_converter() -> Converter:
    """Between messages and objects: it compiles functions for each type, once for all editors.

    It stops at the first fault of a message. What the protocol does not define stays as it is in JSON.
    """
    converter = get_converter(Converter(detailed_validation=False))
    for kind in (JsonRPCRequestMessage, JsonRPCNotification, JsonRPCResponseMessage):
        converter.register_structure_hook(kind, lambda message, kind: kind(**message))
    return converter


@dataclass(frozen=True)
class Unreadable:
    """A request whose parameters are not those of its method, or whose id cannot be answered."""

    id: int | str | None
    error: JsonRpcException


class AnsweringProtocol(LanguageServerProtocol):
    """A client that waits for an answer must get one: pygls only logs what it cannot read."""

    def get_message_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of a method's messages; pygls keeps 128 editors that have gone in its cache."""
        return METHOD_TO_TYPES.get(method, (None,))[0]

    def get_result_type(self, method: str) -> type[Any] | None:  # type: ignore[override]
        """The type of the answers to a method; without a cache too."""
        return METHOD_TO_TYPES.get(method, (None, None))[1]

    has_left = False  # the client: it sent `exit`

    def receive(self, text: bytes) -> None:
        """Handle a message; a text that is none is refused, as its id is not known."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.handle_message(Unreadable(None, JsonRpcParseError(f"no JSON: {str(error)[:200]}")))
            return
        if isinstance(data, dict) and data.get("jsonrpc") == self.VERSION:
            self.has_left = data.get("method") == EXIT
            if not self.has_left:
                self.handle_message(self.structure_message(data))
        else:
            self.handle_message(Unreadable(None, JsonRpcInvalidRequest("expected a message of JSON-RPC 2.0")))

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message as an object; an `Unreadable` for a request that does not fit its method."""
        is_request = {"jsonrpc", "id", "method"} <= data.keys()
        if is_request and not isinstance(data["id"], int | str):  # pygls keeps requests by their id
            message = f"expected a number or text as a request's id, found {data['id']!r}"
            return Unreadable(None, JsonRpcInvalidRequest(message))
        if is_request and not isinstance(data["method"], str):
            return Unreadable(data["id"], JsonRpcInvalidRequest("expected the name of a method"))
        try:
            return super().structure_message(data)
        except JsonRpcException:
            if is_request:
                return Unreadable(data["id"], JsonRpcInvalidParams())
            raise

    def handle_message(self, message: Any) -> None:
        refusal = self._refusal(message)
        if refusal is not None:
            # By hand: pygls leaves out an id that is null.
            error = refusal.to_response_error()
            self._send_data({"jsonrpc": self.VERSION, "id": message.id, "error": error})
        elif self._workspace or hasattr(message, "id") or message.method == EXIT:
            super().handle_message(message)

    def abandon_requests(self) -> None:
        """The client has gone: what waits for its answers ends."""
        for identifier in self._result_types.keys() & self._request_futures.keys():
            self._request_futures.pop(identifier).cancel()
        self._result_types.clear()

    def _refusal(self, message: Any) -> JsonRpcException | None:
        if isinstance(message, Unreadable):
            return message.error
        is_request = hasattr(message, "method") and hasattr(message, "id")
        if self._shutdown and is_request and message.method != EXIT:
            return JsonRpcInvalidRequest("the server is shutting down")
        if is_request and self._workspace is None and message.method != INITIALIZE:
            return JsonRpcServerNotInitialized("the server is not initialized")
        if is_request and self._workspace is not None and message.method == INITIALIZE:
            return JsonRpcInvalidRequest("the server is initialized already")
        return None


class StepscopeServer(LanguageServer):
    """Answers an editor, and measures in the background."""

    protocol: AnsweringProtocol

    def __init__(self, measure: Measuring) -> None:
        super().__init__(
            "stepscope", __version__, protocol_cls=AnsweringProtocol, converter_factory=shared_converter
        )
        self.measure = measure
        self.settings = Settings()
        self.documents = Documents()
        self.jobs = Jobs()
        self._may_run = False  # the user agreed that scripts are run
        self._consent = asyncio.Lock()
        self._sites: dict[str, tuple[Hashable, asyncio.Task[CurrentSites]]] = {}  # by entry file
        self._with_diagnostics: set[str] = set()  # paths

    def use_specified_lines(self, params: lsp.InitializeParams) -> None:
        """Keep the client's documents by the specification's lines; pygls splits at more."""
        before = self.workspace
        self.protocol._workspace = DocumentStore(  # no public way to choose the class
            before.root_uri,
            self.protocol._server._text_document_sync_kind,
            params.workspace_folders or [],
            before.position_encoding,
        )

    async def close(self) -> None:
        await self.jobs.close()
        self.protocol.abandon_requests()
        await self.measure.close()

    # -- measuring

    def begin(self, entry: str, pause_s: float = 0.0) -> None:
        """Measure an entry file in the background; ends an earlier measurement of it."""
        self.jobs.cancel(f"findings of {entry}")  # its capture is about to be replaced
        self.jobs.start(entry, lambda: self._measure(entry), pause_s)

    async def _measure(self, entry: str) -> None:
        refusal = await self._refusal(entry)
        if refusal is not None:
            self._send_state(entry, "cancelled", refusal)
            return
        self._send_state(entry, "measuring", "measuring …")
        message = "stopped"
        progress = Progress(self, f"measuring {Path(entry).name}", lambda: self.jobs.cancel(entry))

        def report(message: str, done: float) -> None:
            progress.report(message, done)
            self._send_state(entry, "measuring", message)

        try:
            # The texts as they are in the editor, saved or not.
            unsaved = await asyncio.to_thread(self.open_documents().unsaved)
            request = MeasureRequest(entry, self.settings, unsaved, self.documents.choices.get(entry))
            measured = await self.measure(request, report)
            self.documents.succeed(measured)
            state, message = "measured", _summary(measured)
        except MeasureError as error:
            self.documents.problems[entry] = error.problem
            state, message = "failed", error.problem.message
        except asyncio.CancelledError:
            self._send_state(entry, "cancelled", message)
            raise
        except Exception as error:  # our own bug must not end the server, nor stay hidden
            message = f"stepscope failed, {type(error).__name__}: {error}; please report this"
            self.documents.problems[entry] = Problem(message, entry, 1)
            state = "failed"
            logging.getLogger(__name__).exception(message)
        finally:
            progress.end(message)
        self.refresh(entry)
        self._send_state(entry, state, message)
        if state == "measured":
            self.jobs.start(f"findings of {entry}", lambda: self._analyze(entry))

    async def _refusal(self, entry: str) -> str | None:
        """Why a script must not be run, or None; asks the user once, before the first run."""
        if self.settings.run_scripts != "ask":
            return None if self.settings.run_scripts == "always" else _NEVER
        async with self._consent:
            try:
                self._may_run = self._may_run or await self._ask(entry)
            except JsonRpcMethodNotFound:
                self.warn(_CANNOT_ASK)
                return _CANNOT_ASK
            return None if self._may_run else _NOT_AGREED

    async def _ask(self, entry: str) -> bool:
        """Ask the user; raises JsonRpcMethodNotFound if the editor cannot."""
        self._send_state(entry, "measuring", "waiting for your consent to run the script")
        message = await asyncio.to_thread(self.measure.describe_run, entry, self.settings)
        actions = [lsp.MessageActionItem(title) for title in (RUN, ALWAYS_RUN, DO_NOT_RUN)]
        params = lsp.ShowMessageRequestParams(lsp.MessageType.Info, message, actions)
        try:
            answer = await self.window_show_message_request_async(params)
        except JsonRpcMethodNotFound:
            raise
        except JsonRpcException:
            return False
        if answer and answer.title == ALWAYS_RUN:
            self.protocol.notify("stepscope/remember", {"setting": "runScripts", "value": "always"})
        return bool(answer and answer.title in (RUN, ALWAYS_RUN))

    async def _analyze(self, entry: str) -> None:
        """Findings follow later: the costs do not wait for them."""
        measured = self.documents.measured[entry]
        if measured.capture is not None:
            found = await find_findings(measured.capture)
            if self.documents.measured[entry] is measured:  # not measured again meanwhile
                self.documents.succeed(replace(measured, findings=found))
                self.refresh(entry)

    def refresh(self, entry: str) -> None:
        """Have the client redraw everything that shows an entry file's results."""
        self._publish()
        self.current_site(entry)
        for path in dict.fromkeys(self.documents.files(entry)):
            self.send_marks(self.documents.uri_of(path))
        workspace = self.client_capabilities.workspace
        if workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support:
            self.workspace_inlay_hint_refresh(None)
        if workspace and workspace.code_lens and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    def _publish(self) -> None:
        """Send diagnostics, and withdraw those that no longer hold."""
        current = self.documents.diagnostics()
        for path in self._with_diagnostics | current.keys():
            uri, diagnostics = self.documents.uri_of(path), current.get(path, [])
            if path in self.documents.open:
                lines = split_lines(self.document(path).source)
                diagnostics = [past_indentation(diagnostic, lines) for diagnostic in diagnostics]
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics))
        self._with_diagnostics = set(current)

    def warn(self, message: str) -> None:
        """Show the user a message that no document has a place for."""
        self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, f"stepscope: {message}"))

    def _send_state(self, entry: str, state: str, message: str) -> None:
        params = {"uri": self.documents.uri_of(entry), "state": state, "message": message}
        self.protocol.notify("stepscope/state", params)

    # -- documents

    def entry(self, uri: str) -> str:
        """The entry file that a document belongs to, by default itself."""
        path = path_of(uri)
        return self.documents.entry_of(path) or path

    def is_open(self, uri: str) -> bool:
        return unquote(uri) in self.workspace.text_documents

    def document(self, path: str) -> Document:
        return cast(Document, self.workspace.get_text_document(self.documents.uri_of(path)))

    def open_documents(self) -> OpenDocuments:
        documents = {}
        for path, uri in self.documents.open.items():
            if self.is_open(uri):
                documents[path] = cast(Document, self.workspace.get_text_document(uri)).snapshot()
        return OpenDocuments(documents)

    def marks(self, uri: str) -> list[LineMark]:
        costs = self.documents.costs_of(path_of(uri))
        if costs is None or not self.is_open(uri):
            return []
        text = self.workspace.get_text_document(uri).source.removeprefix(BYTE_ORDER_MARK)
        return marks_of(costs, split_lines(text))

    def send_marks(self, uri: str) -> None:
        if self.is_open(uri):
            marks = [
                {"line": mark.line, "measured": mark.cost.line, "share": mark.share, "stale": mark.stale}
                for mark in self.marks(uri)
                if mark.shown
            ]
            self.protocol.notify("stepscope/marks", {"uri": uri, "marks": marks})

    def current_site(self, entry: str) -> asyncio.Task[CurrentSites]:
        """Where the batch size is in the current texts, with the actions there; kept until they change."""
        documents, measured = self.open_documents(), self.documents.measured.get(entry)
        choice = self.documents.choices.get(entry)
        request = MeasureRequest(entry, self.settings, choice=choice)
        offered = measured.batch.get("suggestions", ()) if measured and measured.batch else ()
        uri = self.documents.uri_of(entry)
        files = list(dict.fromkeys(self.documents.files(entry)))
        version = (documents.versions(files), choice, self.settings.arguments, id(measured))
        if entry not in self._sites or self._sites[entry][0] != version:
            search = asyncio.to_thread(find_current_sites, request, documents, tuple(offered), uri)
            self._sites[entry] = version, asyncio.create_task(search)
        return self._sites[entry][1]

    def look_ahead(self, uri: str) -> None:
        """Look for the batch size before its actions are asked for, once typing pauses."""
        entry = self.documents.entry_of(path_of(uri))
        if entry is not None:
            self.jobs.start(f"site of {entry}", lambda: self._look(entry), _TYPING_PAUSE_S)

    async def _look(self, entry: str) -> None:
        await asyncio.shield(self.current_site(entry))

    def choose(self, entry: str, choice: SiteChoice) -> None:
        self.documents.choices[entry] = choice
        self.begin(entry)

    async def current_batch(self, entry: str) -> int | None:
        """The batch size in the current text, which may not have been measured yet."""
        found = await asyncio.shield(self.current_site(entry))
        return found[0][0].value if len(found) == 1 else None

    async def batch_edit(self, uri: str, batch: int) -> DocumentEdit:
        """The edit that sets the batch size of the entry file that a document belongs to.

        Raises:
            DocumentNotOpen: the number is in a file that the client has not opened.
            BatchError: there is no single batch size, or more than it would change.
        """
        entry = self.entry(uri)
        documents, arguments = self.open_documents(), self.settings.arguments
        choice = self.documents.choices.get(entry)

        def find() -> DocumentEdit:
            return edit_document(documents, locate_site(entry, documents, arguments, choice), batch)

        return await asyncio.to_thread(find)


def _summary(measured: Measured) -> str:
    """The text of the status bar."""
    batch = measured.batch
    now = batch.get("now") if batch else None
    if not now:
        return "measured"
    return f"{rounded(now['throughput'])} samples/s at {now['batch']}"
