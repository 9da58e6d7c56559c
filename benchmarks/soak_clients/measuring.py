"""An editor that measures a file for real, and looks at its hints while the text changes."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

from soak_clients.edited_document import Document
from soak_clients.lsp_client import Connection
from soak_clients.lsp_server import LspServer
from soak_clients.text_synchronization import at, change, next_version, open_document, place

_COMMAND = "stepscope.measureFile"
_MODEL = Path(__file__).parents[1] / "batch_entries" / "small.py"


class Measuring:
    """Sessions with one server; each measures three times.

    Args:
        server: the server.
        stop: set when it is time to stop.
        pause_s: between two measurements.
    """

    def __init__(self, server: LspServer, stop: asyncio.Event, pause_s: float) -> None:
        self._server, self.tally = server, server.tally
        self._stop, self._pause_s = stop, pause_s
        self._path = server.folder / "small.py"
        self._path.write_bytes(_MODEL.read_bytes())

    async def measure(self, choose: random.Random) -> None:
        """A session: measure, stop, measure, and look at what is shown while the text changes."""
        client = await self._server.editor()
        try:
            document = Document(self._path, tuple(_escaped(self._path)), 0)
            open_document(client, document)
            await self._stop_at_once(client, document)
            for _ in range(3):
                await self._look(client, document)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._pause_s)
            await client.end()
        finally:
            client.close()

    async def _stop_at_once(self, client: Connection, document: Document) -> None:
        await client.ask("stepscope/measure", {"uri": document.uri})
        answer = await client.ask("stepscope/cancel", {"uri": document.uri})
        self.tally.check(answer.get("result") is True, "measurements stopped", str(answer))

    async def _look(self, client: Connection, document: Document) -> None:
        await client.ask("workspace/executeCommand", {"command": _COMMAND, "arguments": [document.uri]})
        state = await client.state("measured", "failed")
        self.tally.check(state["state"] == "measured", "measurements", str(state))
        before = await self._hints(client, document)
        self.tally.check(bool(before), "hints of a measurement", "there are none")
        top = {"start": place(0, 0), "end": place(0, 0)}
        change(client, next_version(document), [{"range": top, "text": "# größer\n\n"}])
        moved = await self._hints(client, document)
        wanted = [(line + 2, label) for line, label in before]
        self.tally.check(moved == wanted, "hints after an edit", f"{moved}, not {wanted}")
        whole = {"start": place(0, 0), "end": place(2, 0)}
        change(client, next_version(document), [{"range": whole, "text": ""}])
        again = await self._hints(client, document)
        self.tally.check(again == before, "hints after its undo", f"{again}, not {before}")

    async def _hints(self, client: Connection, document: Document) -> list[tuple[int, str]]:
        everything = {"start": place(0, 0), "end": place(10**6, 0)}
        answer = await client.ask("textDocument/inlayHint", at(document) | {"range": everything})
        return [(one["position"]["line"], one["label"]) for one in answer["result"]]


def _escaped(path: Path) -> list[str]:
    text = path.read_text("utf-8").replace("{", "{{").replace("}", "}}")
    return text.splitlines(keepends=True)
