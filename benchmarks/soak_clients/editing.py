"""An editor with dozens of documents: random edits, and every answer checked.

The reference is the client's own copy of its documents: it knows where each batch size is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from soak_clients.edited_document import Document, entry_and_target
from soak_clients.lsp_client import Connection
from soak_clients.lsp_server import LspServer
from soak_clients.text_synchronization import at, change, close_document, open_document, place

_MEASURE = "Measure this file with stepscope"
_CANCELLED = -32800


class Editing:
    """Sessions with one server, one after the other."""

    def __init__(self, server: LspServer) -> None:
        self._server, self.tally = server, server.tally

    async def edit(self, choose: random.Random) -> None:
        """A session: open documents, do things with them in any order, close them."""
        client = await self._server.editor()
        try:
            pairs = [
                entry_and_target(self._server.folder, next(self._server.numbers), choose)
                for _ in range(choose.randrange(2, 40))
            ]
            for document in (one for pair in pairs for one in pair):
                open_document(client, document)
            for _ in range(choose.randrange(20, 120)):
                entry, target = (pair := choose.choice(pairs))[0], pair[-1]
                await choose.choice(self._tasks())(client, entry, target, choose)
            for document in (one for pair in pairs for one in pair):
                close_document(client, document)
            await client.end()
            for one in client.unexpected:
                self.tally.wrong(f"an answer that nobody asked for: {one}")
        finally:
            client.close()

    def _tasks(self) -> list[Callable[..., Awaitable[None]]]:
        return [
            self._change,
            self._change,
            self._set_batch,
            self._set_batch,
            self._actions,
            self._nothing_measured,
            self._cancel_requests,
            self._out_of_order,
            self._reopen,
            self._unknown,
        ]

    async def _change(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        for _ in range(choose.randrange(1, 5)):
            change(client, target, [target.edit(choose)])
        self.tally.count("edits")

    async def _set_batch(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """The edit that sets a batch size changes the number and nothing else."""
        batch = choose.randrange(1, 5000)
        params = {"uri": entry.uri, "value": batch}
        edit = (await client.ask("stepscope/batchEdit", params)).get("result") or {}
        wanted = target.with_batch(batch).replace("\r\n", "\n")
        right = target.apply(edit) == wanted if "range" in edit else not target.is_plain
        self.tally.check(right, "edits of the batch size", f"{edit} in {target.text!r}")
        if "range" in edit and right:
            target.batch, target.version = batch, target.version + 1
            change(client, target, [{"range": edit["range"], "text": edit["newText"]}])

    async def _actions(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        here = {"line": choose.randrange(6), "character": 0}
        span = {"range": {"start": here, "end": here}, "context": {"diagnostics": []}}
        answer = await client.ask("textDocument/codeAction", at(entry) | span)
        titles = [one["title"] for one in answer.get("result") or ()]
        self.tally.check(titles == [_MEASURE], "code actions", str(answer)[:300])

    async def _nothing_measured(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """A file that was not measured has neither hints nor hovers."""
        everything = {"start": place(0, 0), "end": place(99, 0)}
        hints, hover, lens = await asyncio.gather(
            client.ask("textDocument/inlayHint", at(entry) | {"range": everything}),
            client.ask("textDocument/hover", at(entry) | {"position": place(2, 3)}),
            client.ask("textDocument/codeLens", at(entry)),
        )
        found = [one.get("result", "missing") for one in (hints, hover, lens)]
        self.tally.check(found == [[], None, []], "hints, hovers and lenses", str(found))

    async def _cancel_requests(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """A request that is cancelled has one answer all the same: a result or that it was."""
        params = {"uri": entry.uri, "value": 7}
        sent = [client.post("stepscope/batchEdit", params) for _ in range(choose.randrange(1, 9))]
        for number, _ in sent:
            client.notify("$/cancelRequest", {"id": number})
        for _, answer in sent:
            message = await asyncio.wait_for(answer, 120)
            right = "result" in message or message["error"]["code"] == _CANCELLED
            self.tally.check(right, "cancelled requests", str(message)[:200])

    async def _out_of_order(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """Edits beyond the end and of earlier versions; then the whole text, which counts."""
        span = {"start": place(choose.randrange(10**6), 5), "end": place(10**6, 10**6)}
        for version in (target.version + 2, target.version - 1):
            document = {"uri": target.uri, "version": version}
            event = {"range": span, "text": choose.choice(["", "\ud800", "batch_size=1\n"])}
            params = {"textDocument": document, "contentChanges": [event]}
            client.notify("textDocument/didChange", params)
        target.version += 3
        change(client, target, [{"text": target.text}])
        self.tally.count("edits out of order", 2)
        await self._set_batch(client, entry, target, choose)

    async def _reopen(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """Close, close again, edit what is closed, open, open again."""
        close_document(client, target)
        close_document(client, target)
        change(client, target, [{"text": "batch_size = 1\n"}])
        target.version += 1
        open_document(client, target)
        open_document(client, target)
        self.tally.count("documents closed and opened")
        await self._set_batch(client, entry, target, choose)

    async def _unknown(
        self, client: Connection, entry: Document, target: Document, choose: random.Random
    ) -> None:
        """Requests that no method fits have an answer, an error."""
        surrogate = {"textDocument": {"uri": "file:///\ud800.py"}, "position": place(0, 0)}
        for method, params in (
            ("stepscope/none", {}),
            ("textDocument/hover", {"position": "?"}),
            ("stepscope/batchEdit", {"uri": entry.uri, "value": "\ud800"}),
            ("workspace/executeCommand", {"command": "\ud800"}),
            ("textDocument/hover", surrogate),
        ):
            message = await client.ask(method, params)
            right = "error" in message or params is surrogate
            self.tally.check(right, "requests that are not understood", str(message)[:200])
