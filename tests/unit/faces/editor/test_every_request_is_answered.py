"""Whatever a client asks, and however badly, it gets an answer, and the server lives on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from reference_client import Buffer, Client

OWN = (
    "stepscope/measure",
    "stepscope/cancel",
    "stepscope/answer",
    "stepscope/batchEdit",
    "stepscope/devices",
)
INTERNAL_ERROR, INVALID_REQUEST = -32603, -32600
COMMANDS = ("measureFile", "cancelFile", "chooseBatchSize", "noSuchCommand")
ASKED = (
    "textDocument/codeAction",
    "textDocument/hover",
    "textDocument/inlayHint",
    "textDocument/codeLens",
    "textDocument/completion",
    "workspace/symbol",
    "codeAction/resolve",
    "inlayHint/resolve",
)


def odd_parameters(uri: str) -> list[Any]:
    """Parameters as they should not be: missing, of other types, elsewhere."""
    far = {"line": 10**9, "character": 10**9}
    nowhere = {"start": far, "end": far}
    here = {"textDocument": {"uri": uri}, "position": far, "range": nowhere}
    return [
        None,
        {},
        [],
        {"uri": 5},
        {"uri": uri},
        {"uri": uri, "value": "many"},
        {"uri": uri, "value": -3},
        {"uri": uri, "value": "\ud800"},
        {"uri": uri, "value": 1e400, "ranks": 1e400, "bandwidth": 1},
        {"uri": "file:///\ud800.py", "value": 3},
        {"uri": "file:///%00.py", "value": 3},
        {"uri": f"file:///{'a/' * 9000}x.py", "value": 3},
        {"uri": "untitled:Untitled-1", "value": 3},
        here,
        here | {"context": {"diagnostics": []}},
        here | {"textDocument": {"uri": "file:///no/such/file.py"}, "context": {"diagnostics": []}},
        here | {"context": {"diagnostics": [], "only": ["quickfix"]}},
        here | {"textDocument": {"uri": "file:///\ud800.py"}, "context": {"diagnostics": []}},
    ]


@pytest.mark.parametrize("method", [*OWN, *ASKED, "no/suchMethod"])
def test_odd_requests_are_answered(method: str, tmp_path: Path) -> None:
    asyncio.run(_ask_oddly(method, tmp_path))


async def _ask_oddly(method: str, folder: Path) -> None:
    client = Client()
    await client.start()
    entry = Buffer(folder / "train.py", "batch_size = 32\n")
    client.open(entry)
    for parameters in odd_parameters(entry.uri):
        answer = await client.answer_to(method, parameters)
        assert ("result" in answer) != ("error" in answer), answer
        assert answer.get("error", {}).get("code") != INTERNAL_ERROR, answer
    assert "result" in await client.answer_to("textDocument/hover", _hover(entry))


@pytest.mark.parametrize("identifier", [None, {}, [], {"start": 1.5}, 1.5])
def test_a_request_whose_id_no_answer_can_have_is_not_executed(identifier: Any) -> None:
    asyncio.run(_ask_with_id(identifier))


async def _ask_with_id(identifier: Any) -> None:
    client = Client()
    await client.start()
    answer = client.answers[None] = asyncio.get_running_loop().create_future()
    measure = {"method": "stepscope/measure", "params": {"uri": "file:///project/train.py"}}
    client.send({"id": identifier, **measure})
    error = (await asyncio.wait_for(answer, 60))["error"]
    assert error["code"] == INVALID_REQUEST
    assert error["message"] == f"expected a number or text as a request's id, found {identifier!r}"
    await asyncio.sleep(0)
    assert not client.told  # no measurement began


@pytest.mark.parametrize("name", COMMANDS)
def test_odd_commands_are_answered(name: str, tmp_path: Path) -> None:
    asyncio.run(_command_oddly(name, tmp_path))


async def _command_oddly(name: str, folder: Path) -> None:
    client = Client()
    await client.start()
    entry = Buffer(folder / "train.py", "batch_size = 32\n")
    for given in (None, [], [5], [entry.uri], [entry.uri, {}], [entry.uri, "x"], [{}], [[], []]):
        asked = {"command": f"stepscope.{name}", "arguments": given}
        answer = await client.answer_to("workspace/executeCommand", asked)
        assert ("result" in answer) != ("error" in answer), answer
    assert "result" in await client.answer_to("textDocument/hover", _hover(entry))


def _hover(buffer: Buffer) -> dict[str, Any]:
    return {"textDocument": {"uri": buffer.uri}, "position": {"line": 0, "character": 0}}
