"""Whatever a client asks, and however badly, it gets an answer, and the server lives on."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pygls.exceptions import JsonRpcException
from reference_client import Buffer, Client

OWN = (
    "stepscope/measure",
    "stepscope/cancel",
    "stepscope/answer",
    "stepscope/batchEdit",
    "stepscope/devices",
)
INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, NOT_INITIALIZED = -32603, -32600, -32700, -32002
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
        assert answer.get("error", {}).get("code") != INTERNAL_ERROR, answer
    assert "result" in await client.answer_to("textDocument/hover", _hover(entry))


ASKS = b'"id": 5, "method": "stepscope/cancel", "params": {"uri": "file:///a.py"}'
TEXTS = {
    "no JSON": (b"hello", PARSE_ERROR, None),
    "nothing": (b"", PARSE_ERROR, None),
    "half of a character": (b'{"jsonrpc": "2.0", "id": "\xe2\x82"}', PARSE_ERROR, None),
    "a number of 5,000 digits": (b'{"jsonrpc": "2.0", "id": %b}' % (b"9" * 5000), PARSE_ERROR, None),
    "100,000 brackets": (b"[" * 100_000, PARSE_ERROR, None),
    "a batch": (b'[{"jsonrpc": "2.0", %b}]' % ASKS, INVALID_REQUEST, None),
    "a number": (b"5", INVALID_REQUEST, None),
    "another version": (b'{"jsonrpc": "1.0", %b}' % ASKS, INVALID_REQUEST, None),
    "no version": (b"{%b}" % ASKS, INVALID_REQUEST, None),
    "a number as method": (b'{"jsonrpc": "2.0", "id": 5, "method": 6}', INVALID_REQUEST, 5),
    "a list as method": (b'{"jsonrpc": "2.0", "id": 5, "method": []}', INVALID_REQUEST, 5),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_message_is_refused(name: str) -> None:
    text, code, identifier = TEXTS[name]
    answer = asyncio.run(_send_text(text, identifier))
    assert (answer["id"], answer["error"]["code"]) == (identifier, code)


async def _send_text(text: bytes, identifier: int | None) -> dict[str, Any]:
    client = Client()
    await client.start()
    answer = client.answers[identifier] = asyncio.get_running_loop().create_future()
    client.server.protocol.receive(text)
    return await asyncio.wait_for(answer, 60)


def test_messages_within_parameters_are_data() -> None:
    inner = {"jsonrpc": "2.0", "id": [], "method": 5}
    answer = asyncio.run(_ask_once("stepscope/cancel", {"uri": "file:///a.py", "inner": inner}))
    assert answer["result"] is False


async def _ask_once(method: str, params: Any) -> dict[str, Any]:
    client = Client()
    await client.start()
    wire = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
    answer = client.answers[0] = asyncio.get_running_loop().create_future()
    client.server.protocol.receive(json.dumps(wire).encode())
    return await asyncio.wait_for(answer, 60)


@pytest.mark.parametrize("method", OWN)
def test_nothing_is_answered_before_initialize_and_that_once(method: str, tmp_path: Path) -> None:
    asyncio.run(_ask_early(method, Buffer(tmp_path / "train.py", "batch_size = 32\n")))


async def _ask_early(method: str, entry: Buffer) -> None:
    client = Client()
    client.open(entry)  # is not heard
    early = await client.answer_to(method, {"uri": entry.uri})
    assert early["error"] == {"code": NOT_INITIALIZED, "message": "the server is not initialized"}
    await client.start()
    client.open(entry)
    again = await client.answer_to("initialize", {"capabilities": {}})
    assert again["error"] == {"code": INVALID_REQUEST, "message": "the server is initialized already"}
    assert (await client.batch_edit(entry, 64))["newText"] == "64"


MANY = 200_000
HERE = {"line": 0, "character": 0}
SPAN = {"start": HERE, "end": HERE}
FLOODS = {
    "changes that are none": ("textDocument/didChange", "contentChanges", [5] * MANY),
    "changes of wrong types": ("textDocument/didChange", "contentChanges", [{"range": 5, "text": 3}] * MANY),
    "wrong diagnostics": ("textDocument/codeAction", "context", {"diagnostics": [{"a": 1}] * MANY}),
    "objects of distinct keys": ("stepscope/cancel", "more", [{f"k{number}": 1} for number in range(MANY)]),
    "changes of one character": (
        "textDocument/didChange",
        "contentChanges",
        [{"range": SPAN, "text": "#"}] * 50_000,
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_messages_of_many_parts_are_read_at_once(name: str, tmp_path: Path) -> None:
    assert asyncio.run(_seconds_of(*FLOODS[name], tmp_path)) < 5


async def _seconds_of(method: str, field: str, many: Any, folder: Path) -> float:
    client = Client()
    await client.start()
    entry = Buffer(folder / "train.py", "batch_size = 32\n" * 2000)
    client.open(entry)
    params = {"textDocument": {"uri": entry.uri, "version": 2}, "range": SPAN, "uri": entry.uri, field: many}
    start = time.process_time()
    if method == "textDocument/didChange":
        with suppress(JsonRpcException):
            client.notify(method, params)
    else:
        await client.answer_to(method, params)
    return time.process_time() - start


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to("train.py")
    asyncio.run(_edit_in_a_circle(tmp_path / "train.py"))


async def _edit_in_a_circle(path: Path) -> None:
    client = Client()
    await client.start()
    entry = Buffer(path, "batch_size = 32\n")
    client.open(entry)
    assert (await client.batch_edit(entry, 64))["newText"] == "64"


def _hover(buffer: Buffer) -> dict[str, Any]:
    return {"textDocument": {"uri": buffer.uri}, "position": {"line": 0, "character": 0}}
