"""Whether a script may be run, and what an editor shows that cannot ask, or names no file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from reference_client import Buffer, Client
from test_current_site import Opens, measured, written

SCRIPT = "loader = torch.utils.data.DataLoader(data, batch_size=32)\n"
NOT_FOUND = {"code": -32601, "message": "Method not found: window/showMessageRequest"}
Scene = Callable[["Answering", Opens, Buffer], Awaitable[None]]


class Answering(Client):
    """A client that answers when it is asked whether a script may be run, and keeps warnings."""

    def __init__(self, measure: Opens, answer: dict[str, Any]) -> None:
        super().__init__(measure)
        self.answer = answer
        self.warnings: list[str] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        message = json.loads(data)
        if message.get("method") == "window/showMessageRequest":
            answer = {"id": message["id"], **self.answer}
            asyncio.get_running_loop().call_soon(self.send, answer)
        if message.get("method") == "window/showMessage":
            self.warnings.append(message["params"]["message"])


def play(scene: Scene, folder: Path, run_scripts: str, answer: dict[str, Any]) -> None:
    async def whole() -> None:
        opens = Opens()
        client = Answering(opens, answer)
        await client.start(run_scripts=run_scripts)
        entry = written(folder / "train.py", SCRIPT)
        client.open(entry)
        await scene(client, opens, entry)
        await client.server.close()

    asyncio.run(whole())


@pytest.mark.parametrize("title", ["Run", "Always in This Workspace"])
def test_a_script_is_run_once_the_user_agrees(title: str, tmp_path: Path) -> None:
    async def scene(client: Answering, opens: Opens, entry: Buffer) -> None:
        await measured(client, entry)
        assert len(opens.requests) == 1

    play(scene, tmp_path, "ask", {"result": {"title": title}})


REFUSALS = [
    ("ask", {"result": {"title": "Do Not Run"}}, "you did not agree"),
    ("ask", {"result": None}, "you did not agree"),
    ("ask", {"error": {"code": -32603, "message": "no"}}, "you did not agree"),
    ("never", {}, 'the setting "runScripts" is "never"'),
]


@pytest.mark.parametrize(("run_scripts", "answer", "why"), REFUSALS)
def test_otherwise_nothing_runs(run_scripts: str, answer: dict[str, Any], why: str, tmp_path: Path) -> None:
    async def scene(client: Answering, opens: Opens, entry: Buffer) -> None:
        state = await measured(client, entry, until="cancelled")
        assert why in state["message"]
        assert opens.requests == []

    play(scene, tmp_path, run_scripts, answer)


def test_an_editor_that_cannot_ask_says_what_to_set(tmp_path: Path) -> None:
    """Helix has no window/showMessageRequest."""

    async def scene(client: Answering, opens: Opens, entry: Buffer) -> None:
        state = await measured(client, entry, until="cancelled")
        assert 'set "runScripts" to "always"' in state["message"]
        assert client.warnings == [f"stepscope: {state['message']}"]
        assert opens.requests == []

    play(scene, tmp_path, "ask", {"error": NOT_FOUND})


@pytest.mark.parametrize("arguments", [{}, {"arguments": []}])
def test_without_a_file_the_only_script_is_measured(arguments: dict[str, Any], tmp_path: Path) -> None:
    """Helix sends no arguments."""

    async def scene(client: Answering, opens: Opens, entry: Buffer) -> None:
        client.open(written(tmp_path / "conf.yaml", "a: 1\n"))
        command = {"command": "stepscope.measureFile", **arguments}
        await client.ask("workspace/executeCommand", command)
        await client.state("measured")
        assert [one.entry for one in opens.requests] == [str(entry.path)]
        stop = {"command": "stepscope.cancelFile", **arguments}
        assert await client.ask("workspace/executeCommand", stop) is False

    play(scene, tmp_path, "always", {})


def test_without_a_file_and_with_several_scripts_nothing_runs(tmp_path: Path) -> None:
    async def scene(client: Answering, opens: Opens, entry: Buffer) -> None:
        client.open(written(tmp_path / "other.py", SCRIPT))
        await client.ask("workspace/executeCommand", {"command": "stepscope.measureFile"})
        (warning,) = client.warnings
        assert warning.startswith("stepscope: 2 Python files are open: use the code action")
        assert opens.requests == []

    play(scene, tmp_path, "always", {})
