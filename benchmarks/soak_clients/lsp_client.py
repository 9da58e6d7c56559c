"""A small client of the language server over TCP, which can also do what no editor should."""

from __future__ import annotations

import asyncio
import json
from typing import Any

_PATIENCE_S = 300.0
CAPABILITIES = {
    "workspace": {"workspaceEdit": {"documentChanges": True}},
    "window": {"workDoneProgress": True},
}


class Connection:
    """One connection; every request gets exactly one answer, or is reported as unanswered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._count = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.states: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.unexpected: list[str] = []
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def to(cls, port: int) -> Connection:
        """A new connection to a port of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def start(self, token: str, **options: Any) -> dict[str, Any]:
        """The answer to `initialize`."""
        given = {"token": token, "runScripts": "always", **options}
        params = {"processId": None, "rootUri": None, "capabilities": CAPABILITIES}
        answer = await self.ask("initialize", params | {"initializationOptions": given})
        self.notify("initialized", {})
        return answer

    async def end(self) -> None:
        """Leave as an editor does."""
        await self.ask("shutdown", None)
        self.notify("exit", None)
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._listening.cancel()
        self.writer.close()

    def post(self, method: str, params: Any) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        """Send a request; its number, and where its answer will be."""
        self._count += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._count] = answer
        self._send({"id": self._count, "method": method, "params": params})
        return self._count, answer

    async def ask(self, method: str, params: Any) -> dict[str, Any]:
        """The answer to a request: a message with a result or an error."""
        _, answer = self.post(method, params)
        return await asyncio.wait_for(answer, _PATIENCE_S)

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    async def state(self, *wanted: str) -> dict[str, Any]:
        """Wait for one of some states."""
        while True:
            found = await asyncio.wait_for(self.states.get(), _PATIENCE_S)
            if found["state"] in wanted:
                return found

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()  # escapes lone surrogates
        self.writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async def _listen(self) -> None:
        try:
            while True:
                header = await self._reader.readuntil(b"\r\n\r\n")
                lines = header.lower().splitlines()
                length = next(int(one.split(b":")[1]) for one in lines if b"content-length" in one)
                self._take(json.loads(await self._reader.readexactly(length)))
        except (OSError, EOFError) as error:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError(str(error)))

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message and "id" in message:  # progress, new hints: agreed
            self._send({"id": message["id"], "result": None})
        elif "method" in message:
            if message["method"] == "stepscope/state":
                self.states.put_nowait(message["params"])
        elif (answer := self._waiting.pop(message.get("id"), None)) is not None:
            answer.set_result(message)
        else:
            self.unexpected.append(json.dumps(message)[:300])
