"""A client of the language server that keeps its documents as UTF-16 code units, as editors do.

It shares no code with the server: lines are found by looking at each code unit.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from stepscope.faces.editor.features import language_server
from stepscope.faces.editor.measuring import Measured, MeasureRequest

LF, CR = 10, 13


class Buffer:
    """A document as the client has it, perhaps not saved."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.version = path, 1
        self.units = to_units(text)

    @property
    def text(self) -> str:
        return from_units(self.units)

    @property
    def uri(self) -> str:
        return self.path.as_uri()

    def starts(self) -> list[int]:
        found = [0]
        for place, unit in enumerate(self.units):
            follows = self.units[place + 1] if place + 1 < len(self.units) else None
            if unit == LF or (unit == CR and follows != LF):
                found.append(place + 1)
        return found

    def position(self, place: int) -> dict[str, int]:
        line = max(number for number, start in enumerate(self.starts()) if start <= place)
        return {"line": line, "character": place - self.starts()[line]}

    def place(self, position: dict[str, int]) -> int:
        return self.starts()[position["line"]] + position["character"]

    def replace(self, begin: int, end: int, text: str) -> dict[str, Any]:
        """Change the document; the event that tells the server."""
        span = {"start": self.position(begin), "end": self.position(end)}
        self.units[begin:end] = to_units(text)
        self.version += 1
        return {"range": span, "text": text}


def to_units(text: str) -> list[int]:
    raw = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(raw[place : place + 2], "little") for place in range(0, len(raw), 2)]


def from_units(units: list[int]) -> str:
    raw = b"".join(unit.to_bytes(2, "little") for unit in units)
    return raw.decode("utf-16-le", "surrogatepass")


class NeverMeasures:
    """Measures nothing: edits need no measurement."""

    async def __call__(self, request: MeasureRequest, *_: Any) -> Measured:
        raise AssertionError("nothing is to be measured")

    def describe_run(self, *_: Any) -> str:
        return ""

    def prepare(self) -> None: ...

    async def close(self) -> None: ...


class Client:
    """Talks to a server in this process, in JSON; each message is encoded and decoded."""

    def __init__(self, measure: Any = None) -> None:
        self.server = language_server(measure or NeverMeasures())
        self.told: list[dict[str, Any]] = []
        self.server.protocol.set_writer(self, include_headers=False)
        self.answers: dict[int | None, asyncio.Future[Any]] = {}
        self.count = 0

    def write(self, data: bytes) -> None:
        message = json.loads(data)
        if "id" in message and "method" not in message:
            self.answers.pop(message["id"]).set_result(message)
        else:
            self.told.append(message)

    def send(self, message: dict[str, Any]) -> None:
        protocol = self.server.protocol
        wire = json.loads(json.dumps({"jsonrpc": "2.0", **message}))
        protocol.handle_message(protocol.structure_message(wire))

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    async def ask(self, method: str, params: Any) -> Any:
        message = await self.answer_to(method, params)
        assert "error" not in message, message
        return message["result"]

    async def answer_to(self, method: str, params: Any) -> dict[str, Any]:
        """The answer to a request, a result or an error."""
        self.count += 1
        answer = asyncio.get_running_loop().create_future()
        self.answers[self.count] = answer
        self.send({"id": self.count, "method": method, "params": params})
        return await asyncio.wait_for(answer, 60)

    async def actions(self, buffer: Buffer, line: int, **context: Any) -> list[dict[str, Any]]:
        """The code actions on a line, from 0."""
        here = {"line": line, "character": 0}
        asked = {"textDocument": {"uri": buffer.uri}, "range": {"start": here, "end": here}}
        return await self.ask("textDocument/codeAction", asked | {"context": {"diagnostics": [], **context}})

    async def run(self, action: dict[str, Any]) -> None:
        """Execute the command of an action."""
        command = {key: action["command"][key] for key in ("command", "arguments")}
        await self.ask("workspace/executeCommand", command)

    async def state(self, wanted: str) -> dict[str, Any]:
        """Wait for a state, and forget what was sent before it."""
        for _ in range(6000):
            for place, message in enumerate(self.told):
                params = message.get("params", {})
                if message["method"] == "stepscope/state" and params["state"] == wanted:
                    del self.told[: place + 1]
                    return params
            await asyncio.sleep(0.01)
        raise TimeoutError(f"no state {wanted}")

    def diagnostics(self, buffer: Buffer) -> list[dict[str, Any]]:
        """The latest diagnostics of a document."""
        published = [
            message["params"]["diagnostics"]
            for message in self.told
            if message["method"] == "textDocument/publishDiagnostics"
            and message["params"]["uri"] == buffer.uri
        ]
        return published[-1]

    async def start(self, capabilities: dict[str, Any] | None = None, run_scripts: str = "always") -> None:
        capabilities = capabilities or {"workspace": {"workspaceEdit": {"documentChanges": True}}}
        options = {
            "capabilities": capabilities,
            "processId": None,
            "rootUri": None,
            "initializationOptions": {"runScripts": run_scripts},
        }
        await self.ask("initialize", options)
        self.notify("initialized", {})

    def open(self, buffer: Buffer) -> None:
        item = {"uri": buffer.uri, "languageId": "x", "version": buffer.version}
        self.notify("textDocument/didOpen", {"textDocument": {**item, "text": buffer.text}})

    def close(self, buffer: Buffer) -> None:
        self.notify("textDocument/didClose", {"textDocument": {"uri": buffer.uri}})

    def change(self, buffer: Buffer, events: list[dict[str, Any]]) -> None:
        document = {"uri": buffer.uri, "version": buffer.version}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": events})

    async def batch_edit(self, buffer: Buffer, value: int) -> dict[str, Any]:
        return dict(await self.ask("stepscope/batchEdit", {"uri": buffer.uri, "value": value}))


def apply(buffer: Buffer, edit: dict[str, Any]) -> bool:
    """As the extension does: only to the version, and over the characters, it was made for."""
    if edit["version"] != buffer.version:
        return False
    begin, end = buffer.place(edit["range"]["start"]), buffer.place(edit["range"]["end"])
    if from_units(buffer.units[begin:end]) != edit["expected"]:
        return False
    buffer.replace(begin, end, edit["newText"])
    return True
