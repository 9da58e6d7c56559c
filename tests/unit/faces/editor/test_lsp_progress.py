"""The progress that an editor shows: nothing waits for it, and nothing depends on it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from reference_client import Client
from test_current_site import Opens

from stepscope.faces.editor.background import Progress


class Editor:
    """Agrees to a token when the test says so."""

    def __init__(self, answer: Exception | None = None) -> None:
        window = lsp.WindowClientCapabilities(work_done_progress=True)
        self.client_capabilities = lsp.ClientCapabilities(window=window)
        self.work_done_progress = self
        self.tokens: dict[str, Any] = {}
        self.told: list[str] = []
        self.agrees = asyncio.Event()
        self._answer = answer

    async def create_async(self, token: str) -> None:
        await self.agrees.wait()
        if self._answer:
            raise self._answer

    def begin(self, token: str, value: Any) -> None:
        self.tokens[token] = asyncio.get_running_loop().create_future()
        self.told.append(value.kind)

    def report(self, token: str, value: Any) -> None:
        self.told.append(f"{value.message} {value.percentage}")

    def end(self, token: str, value: Any) -> None:
        self.told.append(f"{value.kind} {value.message}")


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_it_begins_once_the_editor_agrees_and_ends():
    async def scenario() -> list[str]:
        editor = Editor()
        progress = Progress(editor, "measuring", lambda: None)
        progress.report("too soon to be told", 0.1)
        editor.agrees.set()
        await turns()
        progress.report("half", 0.5)
        progress.end("36 samples/s at 32")
        progress.report("too late", 1.0)
        assert not editor.tokens
        return editor.told

    assert asyncio.run(scenario()) == ["begin", "half 50", "end 36 samples/s at 32"]


def test_what_ended_before_the_editor_agreed_is_not_begun():
    async def scenario() -> list[str]:
        editor = Editor()
        Progress(editor, "measuring", lambda: None).end("stopped")
        editor.agrees.set()
        await turns()
        return editor.told

    assert asyncio.run(scenario()) == []


def test_an_editor_that_refuses_or_shows_none_is_told_nothing():
    async def scenario() -> list[str]:
        refusing, without = Editor(JsonRpcException("no", -32000)), Editor()
        without.client_capabilities = lsp.ClientCapabilities()
        for editor in (refusing, without):
            editor.agrees.set()
            progress = Progress(editor, "measuring", lambda: None)
            await turns()
            progress.report("half", 0.5)
            progress.end("stopped")
        return refusing.told + without.told

    assert asyncio.run(scenario()) == []


def test_stopping_it_in_the_editor_cancels():
    async def scenario() -> list[str]:
        editor, stopped = Editor(), []
        editor.agrees.set()
        progress = Progress(editor, "measuring", lambda: stopped.append("stopped"))
        await turns()
        next(iter(editor.tokens.values())).cancel()
        await turns()
        progress.end("stopped")
        return stopped

    assert asyncio.run(scenario()) == ["stopped"]


def test_nothing_of_an_editor_that_has_gone_is_kept():
    async def scenario() -> weakref.ref[Any]:
        client = Client(Opens())
        await client.start(run_scripts="never")
        token = lsp.WorkDoneProgressCreateParams(token="stepscope 1")
        asking = client.server.protocol.send_request_async(lsp.WINDOW_WORK_DONE_PROGRESS_CREATE, token)
        await client.server.close()
        await asyncio.wait([asking])
        return weakref.ref(client.server.protocol)

    gone = asyncio.run(scenario())
    gc.collect()
    assert gone() is None


def test_an_editor_that_leaves_without_an_answer_leaves_nothing_that_waits():
    async def scenario() -> tuple[bool, int]:
        client = Client(Opens())  # answers nothing
        await client.start(run_scripts="never")
        protocol = client.server.protocol
        token = lsp.WorkDoneProgressCreateParams(token="stepscope 1")
        method = lsp.WINDOW_WORK_DONE_PROGRESS_CREATE
        asking = protocol.send_request_async(method, token)
        await turns()
        assert not asking.done()
        await client.server.close()
        await asyncio.wait([asking], timeout=5)
        return asking.cancelled(), len(asyncio.all_tasks()) - 1

    assert asyncio.run(scenario()) == (True, 0)
